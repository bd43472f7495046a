"""The header and the summary of a run, as far as distributed tests are concerned.

Under xdist, the summary in the process that the user started counts the tests and ranks of all workers.
"""

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddp.planning.plan import core_count
from pytest_ddp.reporting.skip_xfail import skip_reason
from pytest_ddp.settings import Settings

if TYPE_CHECKING:
    from pytest_ddp.outcomes.failure import RankFailure

PLUGIN = "ddp-summary"
_SLOWEST = 3
_WORKER_OUTPUT = "ddp_ranks"
_NVIDIA = Path("/proc/driver/nvidia/gpus")


def header(settings: Settings, job: str = "") -> str:
    """Return the settings, the version of torch, the devices, and how ranks are started. Does not import torch."""
    sizes = ",".join(map(str, settings.world_size))
    backend = settings.backend or "gloo on cpu, nccl on cuda"
    gpus = _gpu_count()
    return (
        f"ddp: world size {sizes}, device {settings.device}, backend {backend}; torch {_torch_version()}, "
        f"{core_count()} cores, {gpus} GPU{'' if gpus == 1 else 's'}; ranks {_start_method(settings, gpus)}; "
        f"seed {settings.seed}{f'; job of {job}' if job else ''}"
    )


def _torch_version() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "not installed"


def _gpu_count() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in {"", "-1"}])
    return len(list(_NVIDIA.iterdir())) if _NVIDIA.is_dir() else 0


def _start_method(settings: Settings, gpus: int) -> str:
    if sys.platform != "linux" or settings.device == "cuda":
        return "in fresh interpreters"
    return "forked" if settings.device == "cpu" or not gpus else "forked, on GPUs in fresh interpreters"


@dataclass(eq=False)  # pytest hashes plugins
class Summary:
    """Counts of distributed tests and ranks, and the state of ranks in a test that was interrupted.

    Attributes:
        settings: the settings of the run.
        executed: number of tests whose body ran, by world.
        skipped: number of skipped tests, by reason.
        seconds: duration of each test, all phases together.
        ranks: number of processes "started", and of ranks "served" in the groups of tests.
        exit_output: the output of ranks while they ended, such as exceptions in `atexit` handlers.
    """

    settings: Settings
    executed: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    seconds: defaultdict[str, float] = field(default_factory=partial(defaultdict, float))
    ranks: Counter[str] = field(default_factory=Counter)
    exit_output: list[str] = field(default_factory=list)
    _running: str = ""
    _interrupted: "RankFailure | None" = None

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Keep the name of the running test."""
        self._running = nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a phase of a distributed test."""
        world = getattr(report, "ddp_world", None)
        if world is None:
            return
        self.seconds[report.nodeid] += report.duration
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped[skip_reason(report)] += 1
        elif report.when == "call":
            self.executed[world] += 1

    def add_exit_output(self, exit_output: Mapping[int, str]) -> None:
        """Add the output of ranks while they ended."""
        texts = sorted(exit_output.items())
        self.exit_output += [f"output of rank {rank} at exit:\n{text.rstrip()}" for rank, text in texts]

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Keep the state of the ranks, which `RankGroup` attaches to an exception that interrupts it."""
        error: BaseException | None = excinfo.value
        while error is not None and self._interrupted is None:
            self._interrupted = getattr(error, "ranks", None)
            error = error.__cause__ or error.__context__

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the counts of an xdist worker."""
        counts, exit_output = getattr(node, "workeroutput", {}).get(_WORKER_OUTPUT, ({}, []))
        self.ranks.update(counts)
        self.exit_output += exit_output

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """On an xdist worker, send the counts; elsewhere, fail a run that executed too few tests."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_WORKER_OUTPUT] = dict(self.ranks), self.exit_output
        elif self._too_few() and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the summary; with `-q`, only if too few tests were executed or a rank printed at exit."""
        if self._interrupted is not None:
            terminalreporter.section(f"interrupted: {self._running}")
            terminalreporter.write_line(str(self._interrupted))
        if self._too_few():
            terminalreporter.section("distributed tests", red=True, bold=True)
        elif not self.exit_output and (not self.seconds or terminalreporter.verbosity < 0):
            return
        else:
            terminalreporter.section("distributed tests")
        for line in [*self.lines(), *self.exit_output]:
            terminalreporter.line(line)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the summary."""
        total = self._total()
        if self._too_few():
            skipped = f" and {self.skipped.total()} skipped" if self.skipped else ""
            yield f"FAILED: {total} executed{skipped}, --ddp-min-executed requires {self.settings.min_executed}"
        worlds = "; ".join(f"{world}: {count}" for world, count in sorted(self.executed.items()))
        yield f"executed: {total}{f' ({worlds})' if worlds else ''}"
        for reason, count in self.skipped.most_common():
            yield f"skipped: {count} ({reason})"
        if started := self.ranks["started"]:
            yield f"ranks: {started} started, reused {max(0, self.ranks['served'] - started)} times"
        if total > _SLOWEST:
            slowest = sorted(((seconds, name) for name, seconds in self.seconds.items()), reverse=True)[:_SLOWEST]
            yield from (f"slowest: {seconds:.2f} s {name}" for seconds, name in slowest)

    def _total(self) -> int:
        return sum(self.executed.values())

    def _too_few(self) -> bool:
        return self._total() < self.settings.min_executed
