"""What the run did with distributed tests: counted as reports come in, told at the end, and held to a minimum.

Under xdist the workers' reports and counts come together in the process that the user started.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from pytest_ddp.settings import Settings

PLUGIN = "ddp-summary"
_SLOWEST = 3
_WORKER_OUTPUT = "ddp_ranks"


@dataclass(eq=False)  # plugins are told apart by identity
class Summary:
    """Counts of distributed tests and ranks.

    Attributes:
        settings: what the run must fulfil.
        executed: tests whose body ran, by world.
        skipped: tests that were skipped, by reason.
        seconds: how long each test took, all phases together.
        ranks: rank processes "started", and places in the groups of tests that they "served".
        farewells: what ranks printed while they ended, such as exceptions in `atexit` handlers.
    """

    settings: Settings
    executed: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=partial(defaultdict, float))
    ranks: Counter[str] = field(default_factory=Counter)
    farewells: list[str] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a phase of a distributed test."""
        world = getattr(report, "ddp_world", None)
        if world is None:
            return
        self.seconds[report.nodeid] += report.duration
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self.skipped[reason.removeprefix("Skipped: ")] += 1
        elif report.when == "call":
            self.executed[world] += 1

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what an xdist worker counted."""
        counted, farewells = getattr(node, "workeroutput", {}).get(_WORKER_OUTPUT, ({}, []))
        self.ranks.update(counted)
        self.farewells += farewells

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand the counts on from a worker; fail a run that executed too few tests."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_WORKER_OUTPUT] = dict(self.ranks), self.farewells
        elif self._too_few() and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def hear_farewells(self, farewells: Mapping[int, str]) -> None:
        """Keep what ranks said at their end."""
        self.farewells += [f"rank {rank} at its end:\n{text.rstrip()}" for rank, text in sorted(farewells.items())]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell, unless there is nothing to tell or the user asked for quiet."""
        if self._too_few():
            terminalreporter.section("distributed tests", red=True, bold=True)
        elif not self.farewells and (not self.seconds or terminalreporter.verbosity < 0):
            return
        else:
            terminalreporter.section("distributed tests")
        for line in [*self.lines(), *self.farewells]:
            terminalreporter.line(line)

    def lines(self) -> Iterator[str]:
        """Return the summary, line by line."""
        if self._too_few():
            yield f"FAILED: {self._total()} executed, --ddp-min-executed asks for {self.settings.min_executed}"
        worlds = "; ".join(f"{world}: {count}" for world, count in sorted(self.executed.items()))
        yield f"executed: {self._total()}{f' ({worlds})' if worlds else ''}"
        for reason, count in self.skipped.most_common():
            yield f"skipped: {count} ({reason})"
        if started := self.ranks["started"]:
            yield f"ranks: {started} started, reused {max(0, self.ranks['served'] - started)} times"
        slowest = sorted(((seconds, name) for name, seconds in self.seconds.items()), reverse=True)[:_SLOWEST]
        if self._total() > _SLOWEST:
            yield from (f"slowest: {seconds:.2f} s {name}" for seconds, name in slowest)

    def _total(self) -> int:
        return sum(self.executed.values())

    def _too_few(self) -> bool:
        return self._total() < self.settings.min_executed
