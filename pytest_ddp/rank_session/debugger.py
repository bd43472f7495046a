"""A rank's debugger: post-mortem after a failure, and `breakpoint()` in a test, on the controller's terminal.

pytest's own debugger does the work (so `--pdbcls` counts); what is added is the terminal, and that only one rank
gets it.
"""

import os
import pdb  # noqa: T100  its breakpoints are ours
import sys
from collections.abc import Callable
from types import FrameType
from typing import IO, Any

import pytest

from pytest_ddp.errors import UsageError
from pytest_ddp.protocol.messages import Debugging
from pytest_ddp.protocol.phases import QUIT
from pytest_ddp.pytest_internals import debug_failure, new_pdb, replace_set_trace
from pytest_ddp.rank.worker import Rank


def post_mortem(_: bytes) -> bytes:
    """Debug this rank's last failure; return `QUIT` if the user wants the run to end."""
    return RankDebugger.current.post_mortem()


def stops_here(rank: int, size: int, wanted: int | None, terminal: str | None) -> bool:
    """Whether `breakpoint()` on this rank gives the user a debugger; other ranks pass over it.

    Raises:
        UsageError: when no rank of this test can have one.
    """
    if wanted is None:
        raise UsageError(
            "breakpoint() on a rank: name the rank whose debugger gets the terminal, for instance --ddp-pdb-rank=0; "
            "the others pass over it"
        )
    if wanted >= size:
        raise UsageError(f"breakpoint() on a rank: --ddp-pdb-rank={wanted}, but this test's last rank is {size - 1}")
    if rank == wanted and terminal is None:
        raise UsageError("breakpoint() on a rank needs a terminal, and the standard input of pytest is not one")
    return rank == wanted


class RankDebugger:
    """Hooks of a rank that may be debugged."""

    current: "RankDebugger"

    def __init__(self, config: pytest.Config, terminal: str | None) -> None:
        RankDebugger.current = self
        self._wanted: int | None = config.option.ddp_pdb_rank
        self._name = terminal
        self._terminal = BorrowedTerminal(terminal or "", self._tell)
        self._failure: pytest.ExceptionInfo[BaseException] | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Stand in for pytest's breakpoints, under all their names."""
        pdb.set_trace = self._set_trace  # for this process only
        replace_set_trace(self._set_trace)

    def pytest_runtest_setup(self) -> None:
        """Let go of an earlier test's frames."""
        self._failure = None

    def pytest_exception_interact(self, call: pytest.CallInfo[Any]) -> None:
        """Keep the frames of a failure."""
        self._failure = call.excinfo

    def pytest_enter_pdb(self, pdb: Any) -> None:
        """Have the terminal whenever the debugger stops, also at a breakpoint that was set in it."""
        interact = pdb.interaction

        def on_terminal(*args: Any) -> None:
            self._terminal.take()
            try:
                interact(*args)
            except BaseException:  # q
                self._terminal.give_back()
                raise

        pdb.interaction = on_terminal

    def pytest_leave_pdb(self) -> None:
        """Give the terminal back when the test goes on."""
        self._terminal.give_back()

    def post_mortem(self) -> bytes:
        """Debug the last failure."""
        if self._failure is None:
            raise LookupError("the failure left no frames")
        self._terminal.take()
        try:
            debug_failure(self._failure)
        except pytest.exit.Exception:
            return QUIT
        finally:
            self._terminal.give_back()
        return b""

    def _set_trace(self, *, header: str | None = None, **options: Any) -> None:
        __tracebackhide__ = True
        rank, run = Rank.current.launch.rank, Rank.current.run
        if stops_here(rank, run.size if run else 0, self._wanted, self._name):
            self._terminal.take()
            new_pdb(header or f"PDB on rank {rank}", **options).set_trace(_caller())

    @staticmethod
    def _tell(entered: bool) -> None:  # noqa: FBT001  what the message holds
        Rank.current.send(Debugging(entered))


def _caller() -> FrameType | None:
    ours = sys._getframe(1)  # noqa: SLF001  as pdb does
    return ours.f_back


class BorrowedTerminal:
    """A terminal, by name, that takes the place of this process's standard streams for a while.

    The process is in a session of its own, so the terminal is not its controlling terminal: it may read and write
    there, and Ctrl-C goes to the controller, which passes it on.
    """

    def __init__(self, name: str, tell: Callable[[bool], None]) -> None:
        self._name = name
        self._tell = tell
        self._kept: list[int] = []
        self._stdin: IO[str] = sys.stdin

    def take(self) -> None:
        """Put the terminal on the standard streams, unless it is there already."""
        if self._kept:
            return
        terminal = os.open(self._name, os.O_RDWR | os.O_NOCTTY)
        self._tell(True)
        self._flush()
        self._kept = [os.dup(fd) for fd in (0, 1, 2)]
        for fd in (0, 1, 2):
            os.dup2(terminal, fd)
        os.close(terminal)
        self._stdin = sys.stdin
        sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115  closed at the end

    def give_back(self) -> None:
        """Put the streams back as they were, unless they are already."""
        if not self._kept:
            return
        self._flush()
        sys.stdin.close()
        sys.stdin = self._stdin
        for fd, kept in enumerate(self._kept):
            os.dup2(kept, fd)
            os.close(kept)
        self._kept = []
        self._tell(False)

    @staticmethod
    def _flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
