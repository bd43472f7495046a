"""Starts the ranks of a pool where the job wants them: on rank hosts, and here."""

import itertools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from pytest_ddp.hosts.host import Host
from pytest_ddp.hosts.hosts import Hosts
from pytest_ddp.hosts.messages import Preload, Start
from pytest_ddp.pool.launcher import EXIT_SECONDS, ForkLauncher, Launcher
from pytest_ddp.protocol.shared_files import SharedFiles

_recorder_numbers: Iterator[int] = itertools.count()
_recorders: "weakref.WeakKeyDictionary[IO[bytes], int]" = weakref.WeakKeyDictionary()


@dataclass
class HostLauncher:
    """A launcher whose ranks run on rank hosts; a rank without a host is started by `local`.

    Attributes:
        hosts: the rank hosts.
        local: starts ranks on this machine.
        placement: the host of each rank; None if it runs here.
        device: "cpu" or "cuda".
    """

    hosts: Hosts
    local: Launcher
    placement: Sequence[Host | None]
    device: str = "cpu"
    _started: set[int] = field(default_factory=set)

    def host_of(self, rank: int) -> Host | None:
        """Return the host that starts a rank; None for a rank of this machine."""
        return self.placement[rank]

    def start(self, shared: SharedFiles) -> int:
        """Start a rank; return its process id here, or its number on its host. Raises LaunchError."""
        host = self.host_of(shared.rank)
        if host is None:
            return self.local.start(shared)
        number = self.hosts.adopt(host, shared)
        self._started.add(number)
        host.send(Start(number, shared.rank, _number_of(shared.recorder), self.device))
        return number

    def exit_code(self, pid: int, seconds: float = EXIT_SECONDS) -> int | None:
        """Wait until a rank has ended; return its exit code if it is known."""
        if pid not in self._started:
            return self.local.exit_code(pid, seconds)
        return self.hosts.exit_code(pid, seconds)

    def close(self) -> None:
        """End all ranks that still run."""
        for number in self._started:
            self.hosts.kill(number)
        self._started.clear()
        if not isinstance(self.local, ForkLauncher):  # the fork server lives as long as this process
            self.local.close()


def preload(hosts: Hosts, modules: Sequence[str], device: str) -> None:
    """Let every host that starts ranks import what they need."""
    for host in hosts.hosts:
        if host.hello.ranks:
            host.send(Preload(tuple(modules), device))


def environment_on(host: Host, ours: Mapping[str, str], at_first: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a rank of `host`: `ours`, but for those that the host's process has its own values of.

    Args:
        host: the host.
        ours: the variables of the controller's process now: tests may have changed them.
        at_first: those with which it began.
    """
    theirs = host.hello.environment
    own = {name: value for name, value in theirs.items() if at_first.get(name) != value}
    absent = at_first.keys() - theirs.keys()
    return {**{name: value for name, value in ours.items() if name not in absent}, **own}


def _number_of(recorder: IO[bytes]) -> int:
    if recorder not in _recorders:
        _recorders[recorder] = next(_recorder_numbers)
    return _recorders[recorder]
