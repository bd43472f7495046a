"""What ranks report beside their tests, reported once for all ranks: subtests, warnings, properties of the run."""

import warnings
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddp.planning.world import rank_list
from pytest_ddp.pytest_internals import SUBTEST_CONTEXT, add_suite_property
from pytest_ddp.reporting.exception_info import loaded_type
from pytest_ddp.reporting.merge import PhaseResult, deserialize_report

if TYPE_CHECKING:
    from pytest_ddp.protocol.phases import RankWarning


def forward_subtests(item: pytest.Item, result: PhaseResult) -> None:
    """Log one report for each subtest: that of the first rank on which it failed, or else of the first rank."""
    found: dict[tuple[str, int], list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for rank, answer in result.answers.items():
        count: dict[str, int] = defaultdict(int)
        for data in answer.subtests:
            name = str(data.get(SUBTEST_CONTEXT))
            found[name, count[name]].append((rank, data))
            count[name] += 1
    for reports in found.values():
        item.ihook.pytest_runtest_logreport(report=_merged(reports, item.config))


def _merged(reports: list[tuple[int, dict[str, Any]]], config: pytest.Config) -> pytest.TestReport:
    failed = [(rank, data) for rank, data in reports if data["outcome"] == "failed"]
    report = deserialize_report((failed or reports)[0][1], config)
    if failed:
        ranks = rank_list(rank for rank, _ in failed)
        report.sections.append(("pytest-ddp", f"the subtest failed on {ranks} of {len(reports)}"))
    return report


def forward_warnings(config: pytest.Config, result: PhaseResult) -> None:
    """Record each warning of the ranks in this process, with the ranks in its text if not all ranks issued it."""
    ranks: dict[RankWarning, list[int]] = defaultdict(list)
    for rank, answer in result.answers.items():
        for warning in dict.fromkeys(answer.warnings):
            ranks[warning].append(rank)
    for warning, issued in ranks.items():
        where = "" if len(issued) == len(result.outcomes) else f" [{rank_list(issued)}]"
        text, category = UserWarning(warning.message + where), _category(warning.category)
        message = warnings.WarningMessage(text, category, warning.filename, warning.lineno)
        recorded = {"warning_message": message, "nodeid": warning.nodeid, "location": warning.location}
        config.hook.pytest_warning_recorded.call_historic(kwargs={"when": "runtest", **recorded})


def _category(name: str) -> type[Warning]:
    """Return the category "module:name" if its module is loaded, else a new type with that name."""
    module, _, kind = name.partition(":")
    return loaded_type(module, kind, Warning) or type(kind, (UserWarning,), {"__module__": module})


def forward_suite_properties(config: pytest.Config, result: PhaseResult) -> None:
    """Write the properties that ranks recorded for the whole run to the JUnit file, each once."""
    for answer in result.answers.values():
        for name, value in answer.suite_properties:
            add_suite_property(config, name, value)
