"""The terminal of the run: the controller knows its name, a rank's debugger borrows it."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

import pytest


@contextmanager
def without_capture(config: pytest.Config) -> Iterator[None]:
    """Let this process have its own standard streams, while a test runs."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    if capture is None:
        yield
        return
    capture.suspend_global_capture(in_=True)
    try:
        yield
    finally:
        capture.resume_global_capture()


def terminal_name() -> str | None:
    """Return the name of the terminal on standard input, such as /dev/pts/3; None if it is not one."""
    try:
        return os.ttyname(0)
    except OSError:
        return None


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
