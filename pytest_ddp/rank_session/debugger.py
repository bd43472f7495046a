"""A rank's debugger on the controller's terminal: post-mortem after a failure, and `breakpoint()` in a test.

The debugger is pytest's own, so `--pdbcls` works. This module lends it the terminal, on one rank only.
"""

import os
import pdb  # noqa: T100  to replace its breakpoints
import sys
from typing import IO, Any

import pytest

from pytest_ddp.errors import UsageError
from pytest_ddp.protocol.messages import Debugging
from pytest_ddp.protocol.phases import QUIT
from pytest_ddp.pytest_internals import debug_failure, new_pdb, replace_set_trace
from pytest_ddp.rank.worker import Rank


def post_mortem(_: bytes) -> bytes:
    """Debug this rank's last failure; return `QUIT` if the user ends the run."""
    return RankDebugger.current.post_mortem()


def stops_here(rank: int, size: int, wanted: int | None, terminal: str | None) -> bool:
    """Whether `breakpoint()` stops on this rank of a world: it does on the rank that `--ddp-pdb-rank` names.

    Raises:
        UsageError: no rank of this test can stop, because none was named or pytest has no terminal.
    """
    if wanted is None:
        raise UsageError(
            "breakpoint() on a rank: choose the rank that gets the terminal, for instance with --ddp-pdb-rank=0; "
            "the other ranks pass over it"
        )
    if wanted >= size:
        raise UsageError(f"breakpoint() on a rank: --ddp-pdb-rank={wanted}, but this test's last rank is {size - 1}")
    if rank == wanted and terminal is None:
        raise UsageError("breakpoint() on a rank needs a terminal, but pytest's standard input is not a terminal")
    return rank == wanted


class RankDebugger:
    """Hooks that give this rank's debugger the terminal."""

    current: "RankDebugger"

    def __init__(self, wanted: int | None, terminal: str | None) -> None:
        RankDebugger.current = self
        self._wanted = wanted
        self._terminal_name = terminal
        self._terminal = BorrowedTerminal(terminal or "")
        self._failure: pytest.ExceptionInfo[BaseException] | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Replace all functions that set a breakpoint."""
        pdb.set_trace = self._set_trace
        replace_set_trace(self._set_trace)

    def pytest_runtest_setup(self) -> None:
        """Forget the frames of an earlier test."""
        self._failure = None

    def pytest_exception_interact(self, call: pytest.CallInfo[Any]) -> None:
        """Keep the frames of a failure."""
        self._failure = call.excinfo

    def pytest_enter_pdb(self, pdb: Any) -> None:
        """Take the terminal each time the debugger stops, also at a breakpoint that the user sets there."""
        interaction = pdb.interaction

        def on_terminal(*args: Any) -> None:
            self._terminal.take()
            try:
                interaction(*args)
            except BaseException:  # the user quits
                self._terminal.give_back()
                raise

        pdb.interaction = on_terminal

    def pytest_leave_pdb(self) -> None:
        """Give the terminal back when the test goes on."""
        self._terminal.give_back()

    def post_mortem(self) -> bytes:
        """Debug the last failure; return `QUIT` if the user ends the run."""
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
        if stops_here(rank, run.world.size if run else 0, self._wanted, self._terminal_name):
            self._terminal.take()
            new_pdb(header or f"PDB on rank {rank}", **options).set_trace(sys._getframe(1))  # noqa: SLF001  as pdb does


class BorrowedTerminal:
    """The terminal of the controller, which replaces this process's standard streams for a while.

    It is not the controlling terminal of this process, which has a session of its own: so the process may read and
    write there, and Ctrl-C reaches the controller, which sends it on. Every change is sent to the controller.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._saved: list[int] = []
        self._stdin: IO[str] = sys.stdin

    def take(self) -> None:
        """Replace the standard streams, unless they are replaced already."""
        if self._saved:
            return
        terminal = os.open(self._name, os.O_RDWR | os.O_NOCTTY)
        Rank.current.send(Debugging(entered=True))
        _flush()
        self._saved = [os.dup(fd) for fd in (0, 1, 2)]
        for fd in (0, 1, 2):
            os.dup2(terminal, fd)
        os.close(terminal)
        self._stdin = sys.stdin
        sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115  `give_back` closes it

    def give_back(self) -> None:
        """Restore the standard streams, unless they are restored already."""
        if not self._saved:
            return
        _flush()
        sys.stdin.close()
        sys.stdin = self._stdin
        for fd, saved in enumerate(self._saved):
            os.dup2(saved, fd)
            os.close(saved)
        self._saved = []
        Rank.current.send(Debugging(entered=False))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
