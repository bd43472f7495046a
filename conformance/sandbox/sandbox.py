"""The sandbox of one submission, as the judge sees it: makes it, starts ranks in it, and ends it."""

import json
import os
import select
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import psutil

from conformance.sandbox import kernel
from conformance.sandbox.cgroups import memory_kills
from conformance.sandbox.folders import temporary_folder
from conformance.sandbox.plan import Plan
from conformance.sandbox.view import SHARED_MEMORY, TMP, WORK
from conformance.sandbox.zygotes import BusyError, RefusedError, WatchedProcess, Zygote
from pytest_ddp.errors import LaunchError
from pytest_ddp.outcomes.outcome import Died, Outcome
from pytest_ddp.pool.launcher import EXIT_SECONDS, ForkLauncher, Server
from pytest_ddp.pool.rendezvous import HOST, Rendezvous
from pytest_ddp.protocol.shared_files import SharedFiles

_MAKE_SECONDS = 60.0
_TRIES, _PAUSE_SECONDS = 5, 0.2
_NO_MEMORY = "the memory that the ranks of a submission may have together was used up (--isolation)"
_ALL_CAN_WRITE = 0o777


@dataclass
class _InsideStore(Rendezvous):
    """A store that is kept in the sandbox, whose network has no way to the judge's."""

    port: int = 0

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the store."""
        return HOST, self.port


@dataclass
class Sandbox:
    """A sandbox that has been made: use `made`. One without namespaces has no process of its own."""

    plan: Plan
    rendezvous: Rendezvous = field(default_factory=Rendezvous)
    namespaces: Sequence[int] = ()
    _folders: Mapping[str, int] = field(default_factory=dict)
    _memory_kills: int = 0

    @classmethod
    @contextmanager
    def made(cls, plan: Plan, zygote: Zygote) -> Iterator["Sandbox"]:
        """Give a sandbox; end it with all that runs in it. Raises RefusedError, and LaunchError."""
        with ExitStack() as held:
            if not plan.namespaces:
                yield cls(plan)
                return
            control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            held.enter_context(control)
            with theirs:
                pid = zygote.ask("build", plan, [theirs.fileno()])
            with suppress(LaunchError):  # where it has ended already, it says why
                held.callback(_end, WatchedProcess.of(pid))
            fds, port = _received(control, held)
            spaces, (tmp, shared_memory) = fds[: len(kernel.NAMESPACES)], fds[len(kernel.NAMESPACES) :]
            yield cls(plan, _InsideStore(port=port), spaces, {TMP: tmp, SHARED_MEMORY: shared_memory})

    @property
    def enforced(self) -> str:
        """What is enforced, in words."""
        return self.plan.enforced

    @property
    def working_folder(self) -> str:
        """The folder in which ranks start."""
        return WORK if self.plan.namespaces else self.plan.environment["TMPDIR"]

    def explained(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Return the outcomes of a run; ranks that were killed because the sandbox had no memory left say so."""
        before, self._memory_kills = self._memory_kills, memory_kills(self.plan.cgroups)
        if self._memory_kills == before:
            return outcomes
        return [
            replace(one, exit_note=_NO_MEMORY) if isinstance(one, Died) and one.signal == "SIGKILL" else one
            for one in outcomes
        ]

    @contextmanager
    def folder(self, *, in_memory: bool) -> Iterator[str]:
        """Give a new folder that all ranks share, in memory or not where temporary files are."""
        if self.plan.namespaces:
            with self._folder_inside(SHARED_MEMORY if in_memory else TMP) as folder:
                yield folder
            return
        memory = Path(SHARED_MEMORY)
        disk = memory if in_memory and memory.is_dir() else None
        with temporary_folder(disk) as folder:
            if self.plan.uid is not None:
                os.chown(folder, self.plan.uid, self.plan.uid)
            yield folder

    @contextmanager
    def _folder_inside(self, place: str) -> Iterator[str]:
        name, parent = f"conformance-{os.urandom(8).hex()}", self._folders[place]
        os.mkdir(name, dir_fd=parent)
        with suppress(OSError):  # a rank may have put something else there, such as a link
            _let_all_write(os.open(name, os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent))
        try:
            yield f"{place}/{name}"
        finally:
            with suppress(RecursionError):  # a thousand folders in one another; they go with the sandbox
                shutil.rmtree(name, ignore_errors=True, dir_fd=parent)


@dataclass
class SandboxLauncher(ForkLauncher):
    """Forks ranks from a server that a zygote forks into a sandbox. Process ids are those of the judge's namespace."""

    zygote: Zygote = field(kw_only=True)
    sandbox: Sandbox = field(kw_only=True)
    _inside: dict[int, int] = field(default_factory=dict)  # process ids in the sandbox, by those outside

    def begin_server(self, fd: int, preload: Sequence[str], environment: Mapping[str, str]) -> Server:  # noqa: ARG002  the zygote has the modules, and the plan the environment
        """Let the zygote fork a server."""
        pid = self.zygote.ask("serve", self.sandbox.plan, [fd, *self.sandbox.namespaces])
        return WatchedProcess.of(pid)

    def start(self, shared: SharedFiles) -> int:
        """Fork one rank; return its process id outside of the sandbox."""
        inside = self._start(shared)
        if not self.sandbox.namespaces or self._server is None:
            return inside
        outside = outside_id(self._server.pid, inside)
        self._inside[outside] = inside
        return outside

    def _start(self, shared: SharedFiles) -> int:
        """Fork one rank; try again for a while: processes of an earlier run that were killed may still be ending."""
        for _ in range(_TRIES):
            with suppress(LaunchError):
                return super().start(shared)
            select.select([], [], [], _PAUSE_SECONDS)
        return super().start(shared)

    def descendants(self) -> list[psutil.Process]:
        """Return all processes below the server."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self._server.pid).children(recursive=True) if self._server else []
        return []

    def exit_code(self, pid: int, seconds: float = EXIT_SECONDS) -> int | None:
        """Wait until the server reports the exit code."""
        return super().exit_code(self._inside.get(pid, pid), seconds)


def _let_all_write(folder: int) -> None:
    try:
        os.fchmod(folder, _ALL_CAN_WRITE)
    finally:
        os.close(folder)


def _received(control: socket.socket, held: ExitStack) -> tuple[list[int], int]:
    """Return the descriptors and the port of the store that the first process sends; raise RefusedError."""
    control.settimeout(_MAKE_SECONDS)
    try:
        message, fds, _, _ = socket.recv_fds(control, 4096, len(kernel.NAMESPACES) + 2)
        for fd in fds:
            held.callback(os.close, fd)
        said = json.loads(message or b"{}") if not fds else json.loads(control.recv(4096) or b"{}")
        if "port" in said:
            control.send(b"go")
    except OSError as error:
        raise LaunchError(f"a sandbox could not be made: {error}") from error
    if "port" not in said:
        refused = BusyError if said.get("for_now") else RefusedError
        raise refused(said.get("refused", "the first process of the sandbox ended"))
    return fds, said["port"]


def _end(process: WatchedProcess) -> None:
    process.kill()
    process.wait(EXIT_SECONDS)


def outside_id(server: int, inside: int) -> int:
    """Return the process id outside of the sandbox of a child of a server; raise LaunchError if it is gone.

    Linux lists the children of a process, but may leave some out while another one ends (proc(5)). Then all processes
    are looked at.
    """
    for child in chain(_listed_children(server), _found_children(server)):
        with suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{child}/status").read_text(encoding="utf-8", errors="replace")
            found = next(line.split() for line in status.splitlines() if line.startswith("NSpid:"))
            if found[-1] == str(inside):
                return child
    raise LaunchError("a rank ended as soon as it was forked")


def _listed_children(server: int) -> Iterator[int]:
    yield from map(int, Path(f"/proc/{server}/task/{server}/children").read_text(encoding="ascii").split())


def _found_children(server: int) -> Iterator[int]:
    with suppress(psutil.NoSuchProcess):
        yield from (child.pid for child in psutil.Process(server).children())
