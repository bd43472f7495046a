"""`--pdb` for distributed tests: after a failure, one rank's debugger gets the terminal.

pytest's own `--pdb` would show the controller's round trip to the ranks. Here the rank that failed, which still has
the frames, opens the terminal and debugs them; the controller waits, without a deadline.
"""

import argparse
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
from pytest_ddp.protocol.targets import POST_MORTEM
from pytest_ddp.pytest_internals import hide_from_summary, without_capture
from pytest_ddp.reporting.merge import PhaseResult, merge, output_sections

if TYPE_CHECKING:
    from pytest_ddp.pool.group import RankGroup
    from pytest_ddp.pool.rank_process import RankProcess

_PLUGIN = "ddp-debugger"
_START_SECONDS = 60.0  # until the debugger has the terminal, from where on there is no deadline
GROUP_SECONDS = 7 * 24 * 3600.0
NO_TRACE = (
    "--trace does not reach the ranks of a distributed test: write breakpoint() where it should stop, "
    "and run with --ddp-pdb-rank=0"
)
_shown = pytest.StashKey[bool]()


def add_option(parser: pytest.Parser) -> None:
    """Declare `--ddp-pdb-rank`."""
    parser.getgroup("ddp").addoption(
        "--ddp-pdb-rank",
        dest="ddp_pdb_rank",
        type=_rank,
        default=None,
        metavar="RANK",
        help="rank that gets the terminal: at breakpoint(), and with --pdb where it failed (default: the root cause)",
    )


def _rank(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a rank, from 0; got {text!r}")
    return int(text)


def terminal_name() -> str | None:
    """Return the name of the terminal on standard input, such as /dev/pts/3; None if it is not one."""
    try:
        return os.ttyname(0)
    except OSError:
        return None


def choose_rank(outcomes: Sequence[Outcome], wanted: int | None) -> int | str:
    """Return the rank to debug, `wanted` if it raised, else the root cause; or the reason why there is none."""
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


def debugger_for(config: pytest.Config) -> "Debugger | None":
    """Return the debugger of a run that may need one."""
    if not (config.getoption("usepdb", False) or config.option.ddp_pdb_rank is not None):
        return None
    debugger = Debugger(config)
    config.pluginmanager.register(debugger, _PLUGIN)
    return debugger


class Debugger:
    """The controller's side: chooses the rank, steps aside for it, and keeps pytest's own debugger out."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._wanted: int | None = config.option.ddp_pdb_rank
        self._interrupt: Any = None

    def watch(self, group: "RankGroup") -> None:
        """Let a rank's debugger stop the clock of this group."""
        group.on_debugging = self._hand_over

    def after_phase(self, item: pytest.Item, when: When, group: "RankGroup", result: PhaseResult) -> None:
        """Debug a failed phase, if the user asked for that with --pdb."""
        if not self._config.getoption("usepdb", False):
            return
        report = pytest.TestReport(item.nodeid, item.location, {}, "passed", None, when)
        merge(report, result, self._config)
        if report.failed:
            item.stash[_shown] = True
            with without_capture(self._config):
                self._show(report, result, when)
                if self._debug(group, choose_rank(result.outcomes, self._wanted)) == QUIT:
                    item.session.shouldstop = "Quitting debugger"

    def _debug(self, group: "RankGroup", rank: int | str) -> bytes:
        """Let the rank debug its failure, or say why there is none to do so; return what the debugger answered."""
        if isinstance(rank, int) and terminal_name() is None:
            rank = "the standard input of pytest is not a terminal"
        if isinstance(rank, str):
            self._say(f"no debugger: {rank}")
            return b""
        self._say(f"entering PDB on rank {rank}")
        (outcome,) = group.run(POST_MORTEM, timeout=_START_SECONDS, ranks=[rank])
        if isinstance(outcome, Returned):
            return outcome.body
        self._say(f"no debugger: rank {rank} {describe_outcome(outcome)}")
        return b""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Keep pytest from debugging our own frames, and from showing a second time what was shown before PDB."""
        report = yield
        if is_distributed(item):
            if call.excinfo is not None and isinstance(call.excinfo.value, KeyboardInterrupt):
                # Under --pdb, pytest would take it for a failure.
                raise pytest.exit.Exception("Ctrl-C") from call.excinfo.value
            if call.excinfo is not None and report.failed and self._config.getoption("usepdb", False):
                self._say("no debugger: the test did not get as far as its ranks")
            call.excinfo = None
            if item.stash.get(_shown, False):
                del item.stash[_shown]
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

    def _say(self, text: str) -> None:
        writer = self._config.get_terminal_writer()
        writer.line()
        writer.sep(">", text)

    def _hand_over(self, process: "RankProcess", entered: bool) -> None:  # noqa: FBT001  as the message says it
        """While a rank has the terminal, Ctrl-C is the rank's, and the clocks of other plugins stand still."""
        if entered:
            self._config.hook.pytest_enter_pdb(config=self._config, pdb=None)
            self._interrupt = signal.signal(signal.SIGINT, lambda *_: _interrupt(process.pid))
        else:
            signal.signal(signal.SIGINT, self._interrupt)
            self._config.hook.pytest_leave_pdb(config=self._config, pdb=None)


def _interrupt(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
