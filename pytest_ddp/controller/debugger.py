"""`--pdb` for distributed tests: after a failure, the debugger of one rank gets the terminal.

The frames of a failure are on the rank: in the controller, pytest's own debugger would show only how it waits for the
ranks. So the rank opens the terminal and debugs its frames, and the controller waits without a deadline.
"""

import contextlib
import os
import signal
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddp.items import is_distributed
from pytest_ddp.outcomes.failure import describe_outcome, failures
from pytest_ddp.outcomes.outcome import Outcome, Raised, Returned
from pytest_ddp.protocol.phases import QUIT, When
from pytest_ddp.protocol.targets import NO_JOB, POST_MORTEM
from pytest_ddp.pytest_internals import hide_from_summary, without_capture
from pytest_ddp.reporting.merge import PhaseResult, merge, output_sections
from pytest_ddp.settings import Settings

if TYPE_CHECKING:
    from pytest_ddp.pool.group import RankGroup
    from pytest_ddp.pool.rank_process import RankProcess

_START_SECONDS = 60.0  # until the debugger has the terminal; then there is no deadline
GROUP_SECONDS = 7 * 24 * 3600.0
NO_TRACE = (
    "--trace does not reach the ranks of a distributed test: write breakpoint() where it should stop, "
    "and run with --ddp-pdb-rank=0"
)
_printed = pytest.StashKey[bool]()


def terminal_name() -> str | None:
    """Return the name of the terminal on standard input, such as /dev/pts/3; None if there is none, as in a job."""
    if NO_JOB in os.environ:  # what other nodes have under this name is another terminal
        return None
    try:
        return os.ttyname(0)
    except OSError:
        return None


def choose_rank(outcomes: Sequence[Outcome], wanted: int | None) -> int | str:
    """Return the rank to debug: `wanted` if it raised, otherwise the root cause; or why there is none."""
    failed = failures(outcomes)
    raised = [outcome.rank for outcome in failed if isinstance(outcome, Raised)]
    if wanted is not None and wanted in raised:
        return wanted
    if not failed:
        return "no rank raised an exception"
    root = failed[0]
    if isinstance(root, Raised):
        return root.rank
    others = f"; rank {raised[0]} can be debugged with --ddp-pdb-rank={raised[0]}" if raised else ""
    return f"rank {root.rank} {describe_outcome(root)}, and left no frames{others}"


def debugger_for(config: pytest.Config, settings: Settings) -> "Debugger | None":
    """Register and return the debugger of a run whose options ask for one."""
    if not config.getoption("usepdb", False) and settings.pdb_rank is None:
        return None
    debugger = Debugger(config, settings.pdb_rank)
    config.pluginmanager.register(debugger)
    return debugger


class Debugger:
    """Chooses the rank to debug, gives it the terminal, and keeps pytest's own debugger off distributed tests."""

    def __init__(self, config: pytest.Config, wanted: int | None) -> None:
        self._config = config
        self._wanted = wanted
        self._sigint_handler: Any = None

    def after_phase(self, item: pytest.Item, when: When, group: "RankGroup", result: PhaseResult) -> None:
        """Debug a failed phase, under --pdb."""
        if not self._config.getoption("usepdb", False):
            return
        report = pytest.TestReport(item.nodeid, item.location, {}, "passed", None, when)
        merge(report, result, self._config)
        if report.failed:
            item.stash[_printed] = True
            with without_capture(self._config):
                self._show(report, result, when)
                if self._debug(group, choose_rank(result.outcomes, self._wanted)) == QUIT:
                    item.session.shouldstop = "Quitting debugger"

    def _debug(self, group: "RankGroup", rank: int | str) -> bytes:
        """Let the rank debug its failure and return its answer; or print why that is not possible."""
        if isinstance(rank, int) and terminal_name() is None:
            rank = "pytest's standard input is not a terminal"
        if isinstance(rank, str):
            self._print(f"no debugger: {rank}")
            return b""
        self._print(f"entering PDB on rank {rank}")
        (outcome,) = group.run(POST_MORTEM, timeout=_START_SECONDS, ranks=[rank])
        if isinstance(outcome, Returned):
            return outcome.body
        self._print(f"no debugger: rank {rank} {describe_outcome(outcome)}")
        return b""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep pytest from debugging the controller's frames and from printing the failure again after the debugger."""
        report = yield
        if is_distributed(item):
            if call.excinfo is not None and isinstance(call.excinfo.value, KeyboardInterrupt):
                # Under --pdb, pytest would treat it as a failure.
                raise pytest.exit.Exception("Ctrl-C") from call.excinfo.value
            if call.excinfo is not None and report.failed and self._config.getoption("usepdb", False):
                self._print("no debugger: the test did not get as far as its ranks")
            call.excinfo = None
            if item.stash.get(_printed, False):
                del item.stash[_printed]
                hide_from_summary(report)
        return report

    def _show(self, report: pytest.TestReport, result: PhaseResult, when: When) -> None:
        writer = self._config.get_terminal_writer()
        writer.line()
        for title, text in output_sections(result, when):
            writer.sep(">", title)
            writer.line(text.rstrip("\n"))
        writer.sep(">", "traceback")
        report.toterminal(writer)

    def _print(self, text: str) -> None:
        writer = self._config.get_terminal_writer()
        writer.line()
        writer.sep(">", text)

    def lend_terminal(self, process: "RankProcess", entered: bool) -> None:  # noqa: FBT001  as in `Debugging`
        """While a rank has the terminal, send Ctrl-C to it, and stop the clocks of other plugins."""
        if entered:
            self._config.hook.pytest_enter_pdb(config=self._config, pdb=None)
            self._sigint_handler = signal.signal(signal.SIGINT, lambda *_: _interrupt(process.pid))
        else:
            signal.signal(signal.SIGINT, self._sigint_handler)
            self._config.hook.pytest_leave_pdb(config=self._config, pdb=None)


def _interrupt(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
