"""What a rank stands on: its streams, its signal handlers, its limits, a folder that exists.

A test may take any of these away; the next group finds them again, and a rank that cannot have them back is replaced.
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
    """Holds on to what this process had when it became a rank.

    Attributes:
        cwd: where it lives.
        stacks: the descriptor that Python stacks are written to.
        output: the descriptor that its output goes to, None for wherever it went before.
    """

    cwd: str
    stacks: int
    output: int | None
    _limits: dict[int, tuple[int, int]] = field(init=False)
    _sources: tuple[int, int] = field(init=False)
    _streams: dict[str, TextIO] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._limits = {limit: resource.getrlimit(limit) for limit in _LIMITS}
        self._sources = (os.dup(1), os.dup(2)) if self.output is None else (self.output, self.output)

    def restore(self) -> None:
        """Put everything back; raise OSError or ValueError for what cannot be."""
        self._restore_limits()
        self._restore_signals()
        self._restore_streams()
        try:
            os.getcwd()  # noqa: PTH109  asked for its error
        except FileNotFoundError:
            os.chdir(self.cwd)

    def flush(self) -> None:
        """Flush the streams, as far as what a test has made of them can be flushed."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # it may be closed, or no stream; the disk may be full
                stream.flush()

    def _restore_limits(self) -> None:
        for limit, (soft, hard) in self._limits.items():
            if resource.getrlimit(limit) != (soft, hard):
                resource.setrlimit(limit, (soft, hard))

    def _restore_signals(self) -> None:
        faulthandler.enable(file=self.stacks, all_threads=True)
        faulthandler.unregister(DUMP_SIGNAL)  # what is registered already is not looked at again
        faulthandler.register(DUMP_SIGNAL, file=self.stacks, all_threads=True, chain=False)

    def _restore_streams(self) -> None:
        for fd, name in ((1, "stdout"), (2, "stderr")):
            if not _same_file(fd, self._sources[fd - 1]):
                os.dup2(self._sources[fd - 1], fd)
            if name not in self._streams or self._streams[name].closed:
                self._streams[name] = self._open(fd)
            setattr(sys, name, self._streams[name])
            setattr(sys, f"__{name}__", self._streams[name])

    def _open(self, fd: int) -> TextIO:
        """Open a stream; captured ones hold nothing back, because what they hold dies with the process."""
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
