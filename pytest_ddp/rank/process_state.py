"""Streams, signal handlers, resource limits and the working directory of a rank, restored for each new group.

A test may change any of them. A rank on which one cannot be restored is replaced.
"""

import contextlib
import faulthandler
import io
import os
import resource
import sys
from dataclasses import dataclass, field
from typing import TextIO

from pytest_ddp.protocol.messages import DUMP_SIGNAL

_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)


@dataclass
class ProcessState:
    """The state of this process when it became a rank.

    Attributes:
        cwd: its working directory.
        stacks: the descriptor that Python stacks are written to.
        output: the descriptor that its output goes to; None if it keeps the streams it was started with.
    """

    cwd: str
    stacks: int
    output: int | None
    _limits: dict[int, tuple[int, int]] = field(init=False)
    _targets: dict[int, int] = field(init=False)
    _streams: dict[str, TextIO] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._limits = {limit: resource.getrlimit(limit) for limit in _LIMITS}
        self._targets = {fd: os.dup(fd) if self.output is None else self.output for fd in (1, 2)}

    def restore(self) -> None:
        """Restore everything; raise OSError or ValueError if that is not possible."""
        for limit, values in self._limits.items():
            if resource.getrlimit(limit) != values:
                resource.setrlimit(limit, values)
        self._restore_signals()
        for fd, name in ((1, "stdout"), (2, "stderr")):
            self._restore_stream(fd, name)
        try:
            os.getcwd()  # noqa: PTH109  for its error
        except FileNotFoundError:
            os.chdir(self.cwd)

    def flush(self) -> None:
        """Flush the streams, if what a test has put in their place can be flushed."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # it may be closed, or no stream; the disk may be full
                stream.flush()

    def _restore_signals(self) -> None:
        faulthandler.enable(file=self.stacks, all_threads=True)
        faulthandler.unregister(DUMP_SIGNAL)  # `register` would not install a registered handler again
        faulthandler.register(DUMP_SIGNAL, file=self.stacks, all_threads=True, chain=False)

    def _restore_stream(self, fd: int, name: str) -> None:
        if not _same_file(fd, self._targets[fd]):
            os.dup2(self._targets[fd], fd)
        if name not in self._streams or self._streams[name].closed:
            self._streams[name] = self._open(fd)
        setattr(sys, name, self._streams[name])
        setattr(sys, f"__{name}__", self._streams[name])

    def _open(self, fd: int) -> TextIO:
        """Open a stream. If output is captured, it has no buffer: a buffer is lost when the process dies."""
        captured = self.output is not None
        raw = open(fd, "wb", buffering=0, closefd=False)  # noqa: SIM115  for the rank's whole life
        return io.TextIOWrapper(
            raw, encoding="utf-8", errors="backslashreplace", line_buffering=True, write_through=captured
        )


def _same_file(fd: int, other: int) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.fstat(other))
    except OSError:
        return False
