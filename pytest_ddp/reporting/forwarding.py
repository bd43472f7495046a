"""Hands on what ranks reported beside their tests: subtests, warnings, properties; each once for all ranks."""

import sys
import warnings
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddp.planning.world import rank_list
from pytest_ddp.pytest_internals import SUBTEST_CONTEXT, add_suite_property
from pytest_ddp.reporting.merge import PhaseResult, revived

if TYPE_CHECKING:
    from pytest_ddp.protocol.phases import RankWarning


def forward_subtests(item: pytest.Item, result: PhaseResult) -> None:
    """Log one report per subtest: that of the first rank on which it failed, else that of the first rank."""
    found: dict[tuple[str, int], list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for rank, answer in result.answers.items():
        seen: dict[str, int] = defaultdict(int)
        for data in answer.subtests:
            name = str(data.get(SUBTEST_CONTEXT))
            found[name, seen[name]].append((rank, data))
            seen[name] += 1
    for reports in found.values():
        item.ihook.pytest_runtest_logreport(report=_one_of(reports, item.config))


def _one_of(reports: list[tuple[int, dict[str, Any]]], config: pytest.Config) -> pytest.TestReport:
    failed = [rank for rank, data in reports if data["outcome"] == "failed"]
    _, data = next((entry for entry in reports if entry[0] in failed), reports[0])
    report = revived(data, config)
    if failed:
        report.sections.append(("pytest-ddp", f"the subtest failed on {rank_list(failed)} of {len(reports)}"))
    return report


def forward_warnings(config: pytest.Config, result: PhaseResult) -> None:
    """Record every warning of the ranks as if it had been given here, with the ranks if not all gave it."""
    ranks: dict[RankWarning, list[int]] = defaultdict(list)
    for rank, answer in result.answers.items():
        for warning in dict.fromkeys(answer.warnings):
            ranks[warning].append(rank)
    for warning, gave in ranks.items():
        where = "" if len(gave) == len(result.outcomes) else f" [{rank_list(gave)}]"
        category = _category(warning.category)
        message = warnings.WarningMessage(
            message=UserWarning(warning.message + where),
            category=category,
            filename=warning.filename,
            lineno=warning.lineno,
        )
        config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": message,
                "when": warning.when,
                "nodeid": warning.nodeid,
                "location": warning.location,
            }
        )


def forward_suite_properties(config: pytest.Config, result: PhaseResult) -> None:
    """Let the JUnit file have what ranks recorded of the whole run, unless it has it already."""
    for answer in result.answers.values():
        for name, value in answer.suite_properties:
            add_suite_property(config, name, value)


def _category(name: str) -> type[Warning]:
    """Return the category, if this process knows it; nothing is imported for it."""
    module, _, kind = name.partition(":")
    found = getattr(sys.modules.get(module), kind, None)
    if isinstance(found, type) and issubclass(found, Warning):
        return found
    return type(kind, (UserWarning,), {"__module__": module})
