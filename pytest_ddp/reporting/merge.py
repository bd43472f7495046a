"""Merges the reports of all ranks into one pytest report: the root cause first, the other ranks below it."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_ddp.outcomes.failure import details, failures, headline, operations, root_cause, summary
from pytest_ddp.outcomes.outcome import Outcome, Returned
from pytest_ddp.planning.world import World, rank_list
from pytest_ddp.protocol.phases import PhaseAnswer
from pytest_ddp.pytest_internals import ExceptionRepr, ReprEntry, ReprExceptionInfo, ReprFileLocation, ReprTraceback
from pytest_ddp.reporting.skip_xfail import all_passed_strictly, apply_reports, disagreement, expected_failure

_RANKS_IN_FULL = 16
_TEXTS_SHOWN = 4  # of the output of more ranks


@dataclass(frozen=True)
class PhaseResult:
    """The outcomes of a phase and the answers of the ranks, decoded.

    Attributes:
        world: the world of the test.
        outcomes: one per rank, in rank order.
        answers: the answer of each rank; an empty answer for a rank that died or hung.
    """

    world: World
    outcomes: Sequence[Outcome]
    answers: Mapping[int, PhaseAnswer]

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], world: World) -> "PhaseResult":
        """Decode the answers of the ranks."""
        return cls(world, outcomes, {one.rank: PhaseAnswer.decode(getattr(one, "body", b"")) for one in outcomes})

    @property
    def passed_plainly(self) -> bool:
        """Whether the phase passed on every rank and no rank has more to report."""
        passed = all(answer.passed is not None for answer in self.answers.values())
        return passed and all(isinstance(outcome, Returned) for outcome in self.outcomes)


def merge(report: pytest.TestReport, result: PhaseResult, config: pytest.Config) -> None:
    """Change the controller's `report` of a phase into the report of all ranks."""
    if report.passed and result.passed_plainly:
        return
    outcomes = result.outcomes
    reports = {
        rank: found for rank, answer in result.answers.items() if (found := _rank_report(answer, report, config))
    }
    for found in reports.values():
        report.user_properties += [pair for pair in found.user_properties if pair not in report.user_properties]
    expected = expected_failure(outcomes, reports)
    if failures(outcomes) and expected is None and not all_passed_strictly(outcomes, reports):
        outcomes = apply_reports(outcomes, reports)
        root_report = reports.get(root_cause(outcomes).rank)
        _fail(report, _longrepr(outcomes, root_report, result.world, report.location))
    elif disagree := disagreement(reports):
        _fail(report, disagree)
    elif reports:
        _copy_result(report, reports, expected)


def output_sections(result: PhaseResult, when: str) -> list[tuple[str, str]]:
    """Return the output, the logs and the last operations of the ranks in a phase, as sections of a report."""
    outcomes = result.outcomes
    found = [(f"Captured stdout+stderr {when}", o.rank, o.output) for o in outcomes if o.output.strip()]
    for rank, answer in result.answers.items():
        found += [(title, rank, text) for title, text in answer.sections if title.endswith(when)]
    return _output(found, result) + [
        (f"{title.capitalize()} {when} ({ranks})", text) for title, ranks, text in operations(outcomes)
    ]


def _output(found: Sequence[tuple[str, int, str]], result: PhaseResult) -> list[tuple[str, str]]:
    """Return titles and texts; in a world of many ranks only a few, with those of the root cause first."""
    if len(result.outcomes) <= _RANKS_IN_FULL:
        return [(f"{title} (rank {rank})", text) for title, rank, text in found]
    root = root_cause(result.outcomes).rank if failures(result.outcomes) else 0
    alike: dict[tuple[str, str], list[int]] = {}
    for title, rank, text in sorted(found, key=lambda one: one[1] != root):
        alike.setdefault((title, text), []).append(rank)
    shown = [(f"{title} ({rank_list(ranks)})", text) for (title, text), ranks in alike.items()]
    left_out = sorted({rank for ranks in list(alike.values())[_TEXTS_SHOWN:] for rank in ranks})
    more = [("pytest-ddp", f"{rank_list(left_out)} printed or logged other lines")] if left_out else []
    return shown[:_TEXTS_SHOWN] + more


def deserialize_report(data: dict[str, Any], config: pytest.Config) -> pytest.TestReport:
    """Return the report that a rank serialised."""
    own = deepcopy(data)  # pytest replaces parts of it by objects
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(config=config, data=own)
    longrepr: Any = report.longrepr
    if isinstance(longrepr, list):  # the (path, line, reason) of a skip; JSON has no tuples
        report.longrepr = (longrepr[0], longrepr[1], longrepr[2])
    return report


def _rank_report(answer: PhaseAnswer, ours: pytest.TestReport, config: pytest.Config) -> pytest.TestReport | None:
    if answer.passed is not None:
        return pytest.TestReport(ours.nodeid, ours.location, {}, "passed", None, ours.when)
    return None if answer.report is None else deserialize_report(answer.report, config)


def _fail(report: pytest.TestReport, longrepr: ExceptionRepr | str) -> None:
    report.outcome, report.longrepr = "failed", longrepr
    vars(report).pop("wasxfail", None)  # set by the controller's pytest, which saw the marker but no failure


def _copy_result(
    report: pytest.TestReport, reports: Mapping[int, pytest.TestReport], expected: tuple[int, str] | None
) -> None:
    """Take the result over from a rank: from one that failed as expected, else from the first."""
    found = reports[expected[0]] if expected else next(iter(reports.values()))
    report.outcome, report.longrepr = found.outcome, found.longrepr
    if hasattr(found, "wasxfail"):
        report.wasxfail = expected[1] if expected else found.wasxfail
    else:
        vars(report).pop("wasxfail", None)


def _longrepr(
    outcomes: Sequence[Outcome], found: pytest.TestReport | None, world: World, location: tuple[str, int | None, str]
) -> ExceptionRepr | str:
    """Return the root cause's own report `found`, if there is one, with the other ranks added."""
    head, rank = headline(outcomes, world), root_cause(outcomes).rank
    if found is None or found.longrepr is None:  # no report, or only subtests failed
        path, line, _ = location
        crash = ReprFileLocation(path, (line or 0) + 1, summary(outcomes))
        text = "\n".join([head, *details(outcomes)])
        return ReprExceptionInfo(reprcrash=crash, reprtraceback=ReprTraceback([text_entry(text)], None, "long"))
    if not isinstance(found.longrepr, ExceptionRepr):
        return "\n".join([head, str(found.longrepr), *details(outcomes)[1:]])
    chain = getattr(found.longrepr, "chain", None)
    traceback: ReprTraceback = chain[0][0] if chain else found.longrepr.reprtraceback
    traceback.reprentries = [text_entry(head), *traceback.reprentries]
    if found.longrepr.reprcrash is not None:
        found.longrepr.reprcrash.message = f"rank {rank}: {found.longrepr.reprcrash.message}"
    for text in details(outcomes)[1:]:
        title, _, body = text.partition("\n")
        found.longrepr.addsection(title.strip("- "), body)
    return found.longrepr


def text_entry(text: str) -> ReprEntry:
    """Return an entry of a traceback that consists of text only."""
    return ReprEntry(text.splitlines(), None, None, None, "long")
