"""Zygotes as the judge sees them: starts them, and asks them to fork (see `zygote`)."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance.sandbox import zygote
from conformance.sandbox.plan import Plan, clean_environment
from pytest_ddp.errors import LaunchError
from pytest_ddp.pool.launcher import EXIT_SECONDS, ONE_THREAD, Server, start_interpreter

HASH_SEED = "PYTHONHASHSEED"
# Large tensors get memory that goes back to the system with them; glibc would soon take it from its heap.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**17)}
_START_SECONDS = 120.0
_FORK_SECONDS = 30.0


class RefusedError(LaunchError):
    """This machine refuses something that a sandbox needs; the message is the system's."""


class BusyError(LaunchError):
    """This machine has no more processes, memory or files for a sandbox at the moment; the message is the system's."""


@dataclass(frozen=True)
class WatchedProcess:
    """A process that need not be a child of this one; its exit code is not known."""

    pid: int
    _descriptor: int

    @classmethod
    def of(cls, pid: int) -> "WatchedProcess":
        """Watch a process; raise LaunchError if it has ended."""
        try:
            return cls(pid, os.pidfd_open(pid))
        except ProcessLookupError as error:
            raise LaunchError("a process ended as soon as it was forked") from error

    def kill(self) -> None:
        """Kill it."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; raise subprocess.TimeoutExpired."""
        ended, _, _ = select.select([self._descriptor], [], [], timeout)
        if not ended:
            raise subprocess.TimeoutExpired("fork server", timeout or 0)
        os.close(self._descriptor)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        return 0


@dataclass
class Zygote:
    """A zygote of one hash seed.

    It is forked from this process if that has the same seed: then both share the memory of what both import.
    """

    preload: Sequence[str]
    hash_seed: str
    _process: Server | None = None
    _control: socket.socket = field(init=False)
    _ready: bool = False

    def begin(self, *, forked: bool = False) -> None:
        """Start it; do not wait for its imports."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            if forked:
                self._process = WatchedProcess.of(_fork_zygote(theirs.fileno(), self.preload))
            else:
                self._process = self._interpreter(theirs.fileno())

    def connected(self) -> "Zygote":
        """Return the same zygote with a connection of its own, for a fork of this process; wait until it is ready.

        Raises:
            OSError: it has ended.
        """
        self._wait()
        found = Zygote(self.preload, self.hash_seed, _ready=True)
        found._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._control, [zygote.CONNECT], [theirs.fileno()])
        return found

    @property
    def descriptor(self) -> int:
        """The descriptor of the connection to it."""
        return self._control.fileno()

    def ask(self, do: str, plan: Plan, fds: Sequence[int]) -> int:
        """Let it fork what is asked for; return the process id. A zygote that has ended is replaced once.

        Raises:
            RefusedError: this machine does not allow it.
            BusyError: it does not allow it now.
            LaunchError: the zygote does not answer.
        """
        message = json.dumps({"do": do, "plan": plan.to_json()}).encode()
        try:
            answer = self._ask(message, fds)
        except OSError:
            self.close()
            self.begin()
            try:
                answer = self._ask(message, fds)
            except OSError as error:
                raise LaunchError(f"no process can be forked for ranks: {error}") from error
        if "refused" in answer:
            raise (BusyError if answer.get("for_now") else RefusedError)(answer["refused"])
        return int(answer["pid"])

    def _ask(self, message: bytes, fds: Sequence[int]) -> dict[str, Any]:
        self._wait()
        socket.send_fds(self._control, [message], fds)
        return self._answer(_FORK_SECONDS)

    def _wait(self) -> None:
        if not self._ready:
            self._answer(_START_SECONDS)
            self._ready = True

    def _answer(self, seconds: float) -> dict[str, Any]:
        self._control.settimeout(seconds)
        data = self._control.recv(zygote.MESSAGE_BYTES)
        if not data:
            raise ConnectionResetError("it has ended; its own error output says why")
        answer: dict[str, Any] = json.loads(data)
        return answer

    def close(self) -> None:
        """End it."""
        if self._ready or self._process:
            self._control.close()
            self._ready = False
        if self._process is None:
            return
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_SECONDS)
        self._process, self._ready = None, False

    def _interpreter(self, fd: int) -> Server:
        call = f"from conformance.sandbox.zygote import main; main({fd}, {os.getpid()}, {tuple(self.preload)!r})"
        environment = clean_environment(os.environ) | MALLOC | {HASH_SEED: self.hash_seed}
        return start_interpreter(call, [fd], environment)


def is_forkable(hash_seed: str) -> bool:
    """Whether a zygote forked from this process is as good as a fresh interpreter."""
    return os.environ.get(HASH_SEED) == hash_seed and has_known_threads() and threading.active_count() == 1


def has_known_threads() -> bool:
    """Whether Python knows all threads of this process: others, such as OpenMP's, hold locks that a fork would copy."""
    return sum(1 for _ in Path("/proc/self/task").iterdir()) == threading.active_count()


def forkable_environment(outer: Mapping[str, str], hash_seed: str) -> dict[str, str]:
    """Return the environment of an interpreter from which a zygote of this seed can be forked."""
    return clean_environment(outer) | ONE_THREAD | MALLOC | {HASH_SEED: hash_seed}


def _fork_zygote(fd: int, preload: Sequence[str]) -> int:
    """Fork a zygote that serves the socket `fd`; return its process id. Nothing of the grade is left open in it."""
    judge = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if pid := os.fork():
        return pid
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        zygote.close_all_but([fd])
        sys.argv, sys.stdout, sys.stderr = ["-c"], sys.__stdout__, sys.__stderr__
        zygote.main(fd, judge, preload)
    finally:
        os._exit(1)
