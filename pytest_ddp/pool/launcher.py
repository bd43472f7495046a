"""Starts rank processes: forks them from a server where forking is safe, otherwise starts fresh interpreters."""

import atexit
import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pytest_ddp.errors import LaunchError
from pytest_ddp.protocol.shared_files import RankFiles, SharedFiles
from pytest_ddp.protocol.targets import PRELOAD, modules_to_preload

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_START_SECONDS = 120.0
EXIT_SECONDS = 10.0
_CANNOT_FORK = (
    "no more ranks can be started, because the system cannot fork another process ({}): end other processes, raise "
    "the limit on processes or memory, or use fewer ranks"
)


class Launcher(Protocol):
    """Starts ranks and reports their exit codes."""

    def start(self, shared: SharedFiles) -> int:
        """Start a rank that uses these files; return its process id. Raises LaunchError."""

    def exit_code(self, pid: int, seconds: float = EXIT_SECONDS) -> int | None:
        """Wait until a rank has ended; return its exit code, negative for a signal, None if it is not known."""

    def close(self) -> None:
        """End all ranks that still run, and the launcher."""


class Server(Protocol):
    """The process of a fork server, as its parent sees it."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def kill(self) -> None:
        """Kill it."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; return its exit code. Raises subprocess.TimeoutExpired."""


def can_fork(device: str) -> bool:
    """Whether ranks on a device can be forked."""
    return device == "cpu" and sys.platform == "linux"


def launcher_for(device: str) -> Launcher:
    """Return the fork server for ranks on "cpu" on Linux; otherwise a launcher of fresh interpreters."""
    return shared_launcher() if can_fork(device) else SpawnLauncher()


def _skip_final_collections() -> None:
    """Keep Python's final garbage collections from looking at torch's million objects.

    Not where triton is loaded: nanobind, which it is built with, reports all that is not collected as leaked.
    """
    if "triton" not in sys.modules:
        gc.freeze()


@functools.cache
def shared_launcher() -> "ForkLauncher":
    """Return the one fork server of this process; it starts with the first rank and ends with the process."""
    launcher = ForkLauncher()
    atexit.register(_skip_final_collections)  # runs last
    atexit.register(launcher.close)
    return launcher


@dataclass
class ForkLauncher:
    """Forks ranks from a server that has already imported what they need (see `fork_server`).

    Attributes:
        preload: modules that the server imports.
        environment: variables for its interpreter, besides those of this process.
    """

    preload: Sequence[str] = PRELOAD
    environment: Mapping[str, str] = field(default_factory=dict)
    _server: Server | None = None
    _started_with: tuple[Sequence[str], Mapping[str, str]] | None = None
    _control: socket.socket = field(init=False)
    _ready: bool = False
    _received: bytes = b""
    _exit_codes: dict[int, int] = field(default_factory=dict)

    def start_server(self) -> None:
        """Start the server if it does not run yet; do not wait for its imports.

        A server that has no ranks yet starts again if its modules or its environment have changed since: a test
        module may set variables that torch reads when it is imported, or import Hypothesis.
        """
        preload = modules_to_preload(self.preload)
        start_with = preload, {**os.environ, **ONE_THREAD, **self.environment}
        if self._server is not None and (self._ready or self._started_with == start_with):
            return
        self.close()
        self._started_with = start_with
        self._control, servers_end = socket.socketpair()
        with servers_end:
            self._server = self.begin_server(servers_end.fileno(), preload, start_with[1])

    def begin_server(self, fd: int, preload: Sequence[str], environment: Mapping[str, str]) -> Server:
        """Start the server's process: a fresh interpreter that serves the socket `fd`."""
        call = f"from pytest_ddp.pool.fork_server import main; main({fd}, {os.getpid()}, {preload!r})"
        return start_interpreter(call, [fd], environment)

    def start(self, shared: SharedFiles) -> int:
        """Fork one rank. A server that has ended is replaced once; one that cannot fork is kept, with its ranks."""
        try:
            answer = self._fork(shared)
        except LaunchError:
            answer = self._fork(shared)
        if "failed" in answer:
            raise LaunchError(_CANNOT_FORK.format(answer["failed"]))
        pid = int(answer["forked"])
        self._exit_codes.pop(pid, None)  # of an earlier process with this id
        shared.rank_channel.close()
        return pid

    def _fork(self, shared: SharedFiles) -> dict[str, Any]:
        """Return the server's answer; end the server if it does not answer."""
        if self._server is None:
            self.start_server()
        try:
            if not self._ready:
                self._receive("ready", _START_SECONDS)
                self._ready = True
            socket.send_fds(self._control, [b"fork"], shared.fds)
            return self._receive("forked", EXIT_SECONDS)
        except OSError as error:
            self.close()
            raise LaunchError(f"the fork server has ended ({error}): no more ranks can be started") from error
        except BaseException:  # interrupted: the next request must not receive the answer to this one
            self.close()
            raise

    def exit_code(self, pid: int, seconds: float = EXIT_SECONDS) -> int | None:
        """Wait until the server reports the exit code."""
        with contextlib.suppress(LaunchError):
            while self._server is not None and pid not in self._exit_codes:
                self._receive("exited", seconds)
        return self._exit_codes.pop(pid, None)

    def close(self) -> None:
        """Close the connection, which makes the server kill its ranks and end; wait until it has."""
        if self._server is None:
            return
        self._control.close()
        if not self._ready:  # it may still import modules, during which it does not notice, and it has no ranks
            self._server.kill()
        try:
            self._server.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._server, self._ready, self._received = None, False, b""

    def _receive(self, key: str, seconds: float) -> dict[str, Any]:
        """Receive messages until one has `key`, and return that; keep the exit codes that come before."""
        while True:
            line, complete, rest = self._received.partition(b"\n")
            if not complete:
                self._received += self._read(seconds)
                continue
            self._received = rest
            message: dict[str, Any] = json.loads(line)
            if "exited" in message:
                self._exit_codes[message["exited"]] = message["exit_code"]
            if key in message:
                return message

    def _read(self, seconds: float) -> bytes:
        waiting = select.poll()  # which takes any descriptor, unlike `select`
        waiting.register(self._control, select.POLLIN)
        if not waiting.poll(seconds * 1000):
            raise LaunchError(f"the fork server did not answer within {seconds:g} s")
        data = self._control.recv(65536)
        if not data:
            raise LaunchError("the fork server ended; its own error output says why")
        return data


@dataclass
class SpawnLauncher:
    """Starts each rank as a fresh interpreter: slower, but safe where forking is not (macOS, CUDA)."""

    _ranks: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, shared: SharedFiles) -> int:
        """Start one interpreter."""
        call = f"from pytest_ddp.pool.launcher import run_spawned_rank as run; run({os.getpid()}, {shared.fds!r})"
        process = start_interpreter(call, shared.fds, {**os.environ, **ONE_THREAD})
        shared.rank_channel.close()
        self._ranks[process.pid] = process
        return process.pid

    def exit_code(self, pid: int, seconds: float = EXIT_SECONDS) -> int | None:
        """Wait for the process, then kill what is left in its process group."""
        process = self._ranks.get(pid)
        if process is None:
            return None
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        del self._ranks[pid]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        return code

    def close(self) -> None:
        """Kill all ranks that still run and wait for them."""
        for pid, process in list(self._ranks.items()):
            process.kill()
            self.exit_code(pid)


def run_spawned_rank(parent: int, fds: tuple[int, ...]) -> None:
    """Be a rank in a fresh interpreter."""
    from pytest_ddp.pool.parent_death import die_with  # noqa: PLC0415  for ranks only, as are those below
    from pytest_ddp.rank import collective_hooks  # noqa: PLC0415
    from pytest_ddp.rank.worker import run_rank  # noqa: PLC0415

    die_with(parent)
    collective_hooks.install()
    run_rank(RankFiles(*fds))


def start_interpreter(call: str, fds: Sequence[int], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Run `call` in a fresh interpreter, in a session of its own."""
    return subprocess.Popen(
        interpreter_command(call), pass_fds=fds, stdin=subprocess.DEVNULL, start_new_session=True, env=environment
    )


def interpreter_command(call: str) -> list[str]:
    """Return the command that runs `call` in a fresh interpreter with our flags and import path; `sys` is imported."""
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # noqa: SLF001  as multiprocessing does
    return [sys.executable, *flags, "-c", f"import sys; sys.path[:] = {sys.path!r}; {call}"]
