"""What the run did with distributed tests: counted as reports come in, told at the end, and held to a minimum.

Under xdist the workers' reports and counts come together in the process that the user started.
"""

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from pytest_ddp.outcomes.failure import RankFailure
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
        exit_output: what ranks printed while they ended, such as exceptions in `atexit` handlers.
    """

    settings: Settings
    executed: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=partial(defaultdict, float))
    ranks: Counter[str] = field(default_factory=Counter)
    exit_output: list[str] = field(default_factory=list)

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
        counted, exit_output = getattr(node, "workeroutput", {}).get(_WORKER_OUTPUT, ({}, []))
        self.ranks.update(counted)
        self.exit_output += exit_output

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand the counts on from a worker; fail a run that executed too few tests."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_WORKER_OUTPUT] = dict(self.ranks), self.exit_output
        elif self._too_few() and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def add_exit_output(self, exit_output: Mapping[int, str]) -> None:
        """Keep what ranks said at their end."""
        self.exit_output += [f"rank {rank} at its end:\n{text.rstrip()}" for rank, text in sorted(exit_output.items())]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell, unless there is nothing to tell or the user asked for quiet."""
        if self._too_few():
            terminalreporter.section("distributed tests", red=True, bold=True)
        elif not self.exit_output and (not self.seconds or terminalreporter.verbosity < 0):
            return
        else:
            terminalreporter.section("distributed tests")
        for line in [*self.lines(), *self.exit_output]:
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


# The header line of a run, made without importing torch: many runs will not need it.

_NVIDIA = Path("/proc/driver/nvidia/gpus")


def header(settings: Settings) -> str:
    """Return the defaults of distributed tests, the version of torch, the devices, and how ranks are started."""
    sizes = ",".join(map(str, settings.world_size))
    backend = settings.backend or "gloo on cpu, nccl on cuda"
    return (
        f"ddp: world size {sizes}, device {settings.device}, backend {backend}; torch {_torch()}, "
        f"{_cores()} cores, {_gpus()}; ranks {_launcher(settings)}; seed {settings.seed}"
    )


def _torch() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "not installed"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus() -> str:
    count = _gpu_count()
    return f"{count} GPU{'' if count == 1 else 's'}"


def _gpu_count() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in {"", "-1"}])
    return len(list(_NVIDIA.iterdir())) if _NVIDIA.is_dir() else 0


def _launcher(settings: Settings) -> str:
    """Say how ranks are started; what device a test of `device=auto` gets is known only when it is its turn."""
    if sys.platform != "linux" or settings.device == "cuda":
        return "in fresh interpreters"
    return "forked" if settings.device == "cpu" or not _gpu_count() else "forked, on GPUs in fresh interpreters"


# Ctrl-C during a distributed test: the summary says what its ranks were doing.


class Interruption:
    """Hooks that remember an interrupted run of ranks (see `RankGroup.run`) until the summary."""

    def __init__(self) -> None:
        self._test = ""
        self._ranks: RankFailure | None = None

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note which test runs."""
        self._test = nodeid

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Keep what the ranks were doing, if it was a run of ranks that was interrupted."""
        self._ranks = interrupted_ranks(excinfo.value)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell it."""
        if self._ranks is not None:
            terminalreporter.section(f"interrupted: {self._test}")
            terminalreporter.write_line(str(self._ranks))


def interrupted_ranks(error: BaseException | None) -> RankFailure | None:
    """Return what an interrupt, or the one that led to `error`, says of the ranks that it met."""
    while error is not None:
        found: RankFailure | None = getattr(error, "ranks", None)
        if found is not None:
            return found
        error = error.__cause__ or error.__context__
    return None
