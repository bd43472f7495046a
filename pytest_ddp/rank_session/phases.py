"""Runs one phase of a test with pytest's own functions, so that nothing a test raises gets past its report."""

import builtins
import json
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

import pytest

from pytest_ddp.outcomes.text_limits import bounded
from pytest_ddp.protocol.phases import EXIT_KIND, ItemId, PhaseAnswer, When
from pytest_ddp.pytest_internals import call_and_report
from pytest_ddp.rank.worker import Failed, SkipRun


def run_phase(item: pytest.Item, when: When, **arguments: Any) -> pytest.TestReport:
    """Return pytest's report of the phase; raise `Failed` when the test asks for the end of the run."""
    try:
        return call_and_report(item, when, log=False, **arguments)
    except pytest.exit.Exception as wish:
        raise Failed(EXIT_KIND, wish.msg, "", json.dumps(wish.returncode).encode()) from None
    except KeyboardInterrupt as interrupt:  # pytest would stop the session; on a rank it is a failure like any other
        call = pytest.CallInfo.from_call(partial(_raise, interrupt), when)
        report: pytest.TestReport = item.ihook.pytest_runtest_makereport(item=item, call=call)
        return report


def _raise(error: BaseException) -> NoReturn:
    raise error


# What a rank answers of a phase: pytest's reports as plain data, and a failure or skip as what the core knows.


def answer_for(
    config: pytest.Config, report: pytest.TestReport, subtests: Sequence[pytest.TestReport], setup: str | None
) -> PhaseAnswer:
    """Return the answer for a phase that passed; `setup` is that for the setup which ran in the same go.

    Raises:
        Failed: the phase failed, or a subtest of it did, or it failed as expected; it holds the answer.
        SkipRun: the test was skipped; likewise.
    """
    answer = _answer(config, report, subtests=tuple(_plain(config, subtest) for subtest in subtests), setup=setup)
    if report.failed or (report.skipped and hasattr(report, "wasxfail")):
        raise Failed(*_kind_and_message(report), report.longreprtext, answer.encode())
    failed = [subtest for subtest in subtests if subtest.failed]
    if failed:
        kind, message = _kind_and_message(failed[0])
        contains = f"contains {len(failed)} failed subtest{'s' if len(failed) > 1 else ''}"
        raise Failed(f"{kind} in a subtest", message, contains, answer.encode())
    if isinstance(report.longrepr, tuple):
        raise SkipRun(report.longrepr[2].removeprefix("Skipped: "), answer.encode())
    return answer


def _answer(config: pytest.Config, report: pytest.TestReport, **more: Any) -> PhaseAnswer:
    """Return what the controller needs of a report: of one that passed, as most do, next to nothing."""
    if report.passed and not report.user_properties and not hasattr(report, "wasxfail"):
        return PhaseAnswer(passed=report.duration, sections=_sections(report), **more)
    plain = _plain(config, report)
    return PhaseAnswer({**plain, "sections": []}, sections=plain["sections"], **more)


def _plain(config: pytest.Config, report: pytest.TestReport) -> dict[str, Any]:
    data: dict[str, Any] = config.hook.pytest_report_to_serializable(config=config, report=report)
    return {**data, "longrepr": bounded(data["longrepr"]), "sections": _sections(report)}


def _sections(report: pytest.TestReport) -> tuple[tuple[str, str], ...]:
    return tuple((title, bounded(text)) for title, text in report.sections)


def _kind_and_message(report: pytest.TestReport) -> tuple[str, str]:
    """Return the exception's type and message as far as pytest's report still tells them."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        errors = [line[1:].strip() for line in report.longreprtext.splitlines() if line.startswith("E ")]
        told = errors[0] if errors else report.longreprtext
        kind, _, message = told.partition(": ")
        return (kind, message) if isinstance(getattr(builtins, kind, None), type) else ("an error", told)
    kind, _, message = crash.message.partition(": ")
    is_name = kind.replace("<locals>.", "").replace(".", "_").isidentifier()
    return (kind, message) if is_name else ("AssertionError", crash.message)


def answer_not_found(config: pytest.Config, test: ItemId, trouble: pytest.CollectReport | None) -> NoReturn:
    """Raise what tells that the controller has found a test and this rank has not; `trouble` says why not.

    Raises:
        LookupError: nothing says why.
        Failed, SkipRun: its module, or a conftest file, failed here or skipped; as `answer_for`.
    """
    if trouble is not None:
        report = pytest.TestReport(
            test.nodeid, (test.path, None, test.nodeid), {}, trouble.outcome, trouble.longrepr, "setup"
        )
        answer_for(config, report, (), None)
    raise LookupError(
        f"this rank does not find {test.nodeid} in {test.path}, where the controller found it: "
        "tests must be collected alike everywhere, so their names and parameters may not be random"
    )
