"""Runs the grader for submissions: forks it from a warm process, and ends it at its limit.

Nothing here imports torch, so that the warm process can start before the course's own process imports it.
"""

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Self

from conformance.batch.folders import remove_tree
from pytest_ddp.errors import LaunchError
from pytest_ddp.pool.launcher import EXIT_SECONDS, ONE_THREAD

if TYPE_CHECKING:
    from conformance.grading.grade import Grading

_OUTPUT_BYTES = 2**20  # of the log of a run that are kept
_POLL_SECONDS = 0.2
# Another hash seed than that of zygotes, so that none is forked from a process that has the judge. Without GPUs,
# autograd has no threads, which a fork would lose.
_ENVIRONMENT = {**ONE_THREAD, "PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": ""}


@dataclass
class WarmProcess:
    """The process that forks graders, and the socket through which it is asked for them."""

    process: "subprocess.Popen[bytes]"
    control: socket.socket

    @classmethod
    def started(cls, *, small: bool) -> Self:
        """Start it; it imports the grader, and then waits to be told how to grade."""
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        bound = f"from pytest_ddp.pool.parent_death import die_with; die_with({os.getpid()})"  # before long imports
        given = f"cli.main, {theirs.fileno()}, small={small}"
        call = f"from conformance import cli; from conformance.batch.warm_grader import main; main({given})"
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"import sys; sys.path[:] = {sys.path!r}; {bound}; {call}"],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_ENVIRONMENT},
                start_new_session=True,
            )
        return cls(process, control)

    def close(self) -> None:
        """End it, and with it its graders."""
        self.control.close()
        self.process.kill()
        self.process.wait()


@dataclass
class Graders:
    """Forks graders from one process (see `warm_grader`); use as a context manager.

    Attributes:
        grading: how submissions are graded.
        small: whether memory is scarce.
        warm: the process, if it has been started already; it is ended with this.
    """

    grading: "Grading"
    small: bool = False
    warm: WarmProcess | None = None
    _lock: Lock = field(default_factory=Lock)

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def run(self, arguments: Sequence[str], log: Path, temporary: Path, limit: float) -> Generator[bool]:
        """Run the grader with these arguments: yield False again and again, and True when it has ended.

        The iterator is exhausted without True if the grader was killed at its limit. Closing it kills the grader.

        Args:
            arguments: its command line.
            log: the file to which its output is added.
            temporary: a folder for temporary files, which is made anew and removed.
            limit: in seconds, from when the grader has been forked.

        Raises:
            LaunchError: the process that forks graders has failed; it has printed why.
        """
        remove_tree(temporary)
        temporary.mkdir()
        try:
            with log.open("ab") as opened:
                yield from self._run(
                    {"arguments": list(arguments), "temporary": str(temporary.resolve())}, opened, limit
                )
        finally:
            remove_tree(temporary)
            cut(log)

    def _run(self, request: dict[str, object], log: BufferedIOBase, limit: float) -> Generator[bool]:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self._ask(json.dumps(request).encode(), [theirs.fileno(), log.fileno()])
            while not _has_news(ours):  # the process draws scenarios first
                yield False
            if not ours.recv(1):
                self._hold_alive()
            try:
                for _ in range(max(1, round(limit / _POLL_SECONDS))):
                    ended = _has_news(ours)
                    yield ended
                    if ended:
                        return
            finally:
                ours.settimeout(EXIT_SECONDS)
                with suppress(OSError):  # it has ended, or does not end in time
                    ours.shutdown(socket.SHUT_WR)
                    ours.recv(16)  # it is killed when this returns

    def _hold_alive(self) -> None:
        """Raise LaunchError if the process has failed; one that was killed is replaced at the next request."""
        with suppress(subprocess.TimeoutExpired):
            if self.warm and self.warm.process.wait(EXIT_SECONDS) > 0:
                raise LaunchError("the process that forks graders has failed; its error is printed above")

    def _ask(self, request: bytes, fds: Sequence[int]) -> None:
        """Send a request; a process that has ended is replaced."""
        with self._lock:
            warm = self.warm or self._begin()
            try:
                socket.send_fds(warm.control, [request], fds)
            except OSError:
                self._close()
                socket.send_fds(self._begin().control, [request], fds)

    def _begin(self) -> WarmProcess:
        self.warm = warm = self.warm or WarmProcess.started(small=self.small)
        asked = ("seed", "world_size", "components", "examples", "core")
        plain = {name: getattr(self.grading, name) for name in asked}
        with suppress(OSError):  # it has ended: the first request says so
            warm.control.send(json.dumps(plain).encode())
        return warm

    def _close(self) -> None:
        """End the process, and with it its graders."""
        warm, self.warm = self.warm, None
        if warm:
            warm.close()


def _has_news(channel: socket.socket) -> bool:
    """Wait a moment; return whether something can be received, or the other side has ended."""
    return bool(select.select([channel], [], [], _POLL_SECONDS)[0])


def cut(log: Path) -> None:
    """Keep the end of a log that has grown too long."""
    if log.stat().st_size > _OUTPUT_BYTES:
        with log.open("rb") as opened:
            opened.seek(-_OUTPUT_BYTES, os.SEEK_END)
            end = opened.read()
        log.write_bytes(b"... the beginning is cut off\n" + end)
