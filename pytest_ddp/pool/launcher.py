"""Starts rank processes: forked from a warm server where that is safe, else as fresh interpreters."""

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pytest_ddp.errors import LaunchError
from pytest_ddp.protocol.shared_files import RankFiles, SharedFiles
from pytest_ddp.protocol.targets import PRELOAD, PRELOAD_IF_USED

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_START_SECONDS = 120.0
EXIT_SECONDS = 10.0
_NO_FORK = (
    "no more rank can be started, the system forks no more processes ({}): end some that run beside, raise the limit "
    "on processes or memory, or ask for fewer ranks"
)


class _ForkError(LaunchError):
    """The fork server is well, but the system forks no more processes."""


class Launcher(Protocol):
    """Starts ranks and says how they ended."""

    def start(self, shared: SharedFiles) -> int:
        """Start one rank on the shared files and return its process id."""

    def exit_code(self, pid: int, seconds: float = EXIT_SECONDS) -> int | None:
        """Wait for a rank that is ending; its exit code, negative for a signal, None if it cannot be learnt."""

    def close(self) -> None:
        """End every rank that is left, and the launcher."""


def _interpreter(call: str) -> list[str]:
    """Return the command that runs `call` in a fresh interpreter with our own flags and import path."""
    path = f"import sys; sys.path[:] = {sys.path!r}; "
    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-c", path + call]  # type: ignore[attr-defined]  # noqa: SLF001  what multiprocessing uses too


@dataclass
class ForkLauncher:
    """Forks ranks from a server that has already imported `preload` (see `fork_server`).

    Attributes:
        preload: modules that the server imports.
        environment: variables that its interpreter starts with, besides our own.
    """

    preload: Sequence[str] = PRELOAD
    environment: Mapping[str, str] = field(default_factory=dict)
    _server: "subprocess.Popen[bytes] | None" = None
    _begun_with: tuple[Sequence[str], Mapping[str, str]] | None = None
    _control: socket.socket = field(init=False)
    _ready: bool = False
    _lines: bytes = b""
    _exits: dict[int, int] = field(default_factory=dict)

    def start_server(self) -> None:
        """Start the server, if it does not run yet, without waiting for its imports.

        One that nobody has waited for is started anew if it would be another one by now: a test module may have set
        variables that torch reads when it is imported, or have imported what ranks should not import one by one.
        """
        preload = (*self.preload, *(preload for used, preload in PRELOAD_IF_USED.items() if used in sys.modules))
        begun_with = preload, {**os.environ, **_ONE_THREAD, **self.environment}
        if self._server is not None and (self._ready or self._begun_with == begun_with):
            return
        self.close()
        self._begun_with = begun_with
        self._control, theirs = socket.socketpair()
        call = f"from pytest_ddp.pool.fork_server import main; main({theirs.fileno()}, {os.getpid()}, {preload!r})"
        self._server = subprocess.Popen(
            _interpreter(call),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=begun_with[1],
        )
        theirs.close()

    def start(self, shared: SharedFiles) -> int:
        """Fork one rank; a server that is gone is replaced once, one that cannot fork keeps the ranks that it has."""
        try:
            return self._fork(shared)
        except _ForkError:
            raise
        except LaunchError:
            self.close()
            return self._fork(shared)

    def _fork(self, shared: SharedFiles) -> int:
        if self._server is None:
            self.start_server()
        if not self._ready:
            self._hear("ready", _START_SECONDS)
            self._ready = True
        try:
            socket.send_fds(self._control, [b'{"fork": true}\n'], shared.fds)
        except OSError as error:
            raise LaunchError(f"the fork server is gone ({error}): no more ranks can be started") from error
        try:
            pid = self._hear("forked", EXIT_SECONDS)
        except _ForkError:
            raise
        except BaseException:  # interrupted: the answer that is still to come must not be taken for one to the next
            self.close()
            raise
        self._exits.pop(pid, None)  # of an earlier process that nobody asked about
        shared.rank_channel.close()
        return pid

    def exit_code(self, pid: int, seconds: float = EXIT_SECONDS) -> int | None:
        """Wait until the server has told how the rank ended."""
        with contextlib.suppress(LaunchError):
            while self._server is not None and pid not in self._exits:
                self._hear("exited", seconds)
        return self._exits.pop(pid, None)

    def close(self) -> None:
        """Hang up, which makes the server kill what is left and leave; wait for that."""
        if self._server is None:
            return
        self._control.close()
        if not self._ready:  # it may still be importing, does not listen before that is done, and has no ranks to end
            self._server.kill()
        try:
            self._server.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._server, self._ready, self._lines = None, False, b""

    def _hear(self, word: str, seconds: float) -> int:
        """Read what the server says until it says `word`; remember exits on the way."""
        while True:
            line, found, rest = self._lines.partition(b"\n")
            if not found:
                self._lines += self._read(seconds)
                continue
            self._lines = rest
            said = json.loads(line)
            if "exited" in said:
                self._exits[said["exited"]] = said["status"]
            if "failed" in said:
                raise _ForkError(_NO_FORK.format(said["failed"]))
            if word in said:
                return int(said[word])

    def _read(self, seconds: float) -> bytes:
        readable, _, _ = select.select([self._control], [], [], seconds)
        data = self._control.recv(65536) if readable else b""
        if data:
            return data
        if readable:
            raise LaunchError("the fork server ended; its own error output says why")
        raise LaunchError(f"the fork server gave no answer within {seconds:g} s")


@functools.cache
def shared_launcher() -> ForkLauncher:
    """Return the one fork server of this process; it starts with the first rank and ends with the process."""
    launcher = ForkLauncher()
    atexit.register(launcher.close)
    return launcher


@dataclass
class SpawnLauncher:
    """Starts every rank as a fresh interpreter: slower, but safe where forking is not (macOS, CUDA)."""

    _ranks: dict[int, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, shared: SharedFiles) -> int:
        """Start one interpreter."""
        call = f"from pytest_ddp.pool.launcher import spawned; spawned({os.getpid()}, {shared.fds!r})"
        process = subprocess.Popen(
            _interpreter(call),
            pass_fds=shared.fds,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **_ONE_THREAD},
        )
        shared.rank_channel.close()
        self._ranks[process.pid] = process
        return process.pid

    def exit_code(self, pid: int, seconds: float = EXIT_SECONDS) -> int | None:
        """Wait for the process; then end whatever it has left in its process group."""
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
        """Kill and wait for every rank that is left."""
        for pid, process in list(self._ranks.items()):
            process.kill()
            self.exit_code(pid)


def launcher_for(device: str) -> Launcher:
    """Return what starts ranks for a device: a fork server where forking is safe, fresh interpreters for CUDA."""
    return shared_launcher() if device == "cpu" and sys.platform == "linux" else SpawnLauncher()


def spawned(parent: int, fds: tuple[int, ...]) -> None:
    """Be a rank in a fresh interpreter."""
    from pytest_ddp.pool.parent_death import die_with  # noqa: PLC0415
    from pytest_ddp.rank import collective_hooks  # noqa: PLC0415  imports torch, which the controller's side may never need
    from pytest_ddp.rank.worker import run_rank  # noqa: PLC0415

    die_with(parent)
    collective_hooks.install()
    run_rank(RankFiles(*fds))
