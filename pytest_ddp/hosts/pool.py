"""A pool of ranks of which some run on other nodes."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_ddp.hosts.host import Question
from pytest_ddp.hosts.hosts import Hosts
from pytest_ddp.hosts.launcher import HostLauncher, environment_on
from pytest_ddp.pool.group import RankGroup
from pytest_ddp.pool.pool import RankPool
from pytest_ddp.pool.rank_process import RankProcess
from pytest_ddp.protocol.messages import Message, encode
from pytest_ddp.protocol.shared_files import SharedFiles

# Looks may take this share of the time: with many nodes they come less often.
_SHARE = 0.1


@dataclass
class RemoteRankProcess(RankProcess):
    """A rank of a host. Its files here are copies, and its host answers what the system answers of a local rank."""

    hosts: Hosts = field(kw_only=True)

    def send(self, message: Message | bytes) -> None:
        """Send a message, which may be encoded already; do nothing if the process has ended."""
        self.hosts.deliver(self.pid, message if isinstance(message, bytes) else encode(message))

    @property
    def status(self) -> str:
        """What the process does, in the words of psutil; "gone" if it has ended or its host is lost."""
        return str(self._ask("status", ("gone", False, 0.0))[0])

    @property
    def is_busy(self) -> bool:
        """Whether one of its threads uses a CPU, or waits for a CPU or a disk."""
        return bool(self._ask("status", ("gone", False, 0.0))[1])

    @property
    def cpu_seconds(self) -> float:
        """The CPU time that the process has used; 0 if it has ended."""
        return float(self._ask("status", ("gone", False, 0.0))[2])

    def begin_dump(self) -> "RemoteDump":
        """Make the process write its Python stacks."""
        return RemoteDump(self.hosts.begin_to_ask("stacks", [self.pid]))

    def kill(self) -> None:
        """End the process and its whole process group."""
        self.hosts.kill(self.pid)

    def _ask(self, what: str, default: Any) -> Any:
        answers = self.hosts.ask(what, [self.pid])
        return answers[0][0] if answers and answers[0] else default


@dataclass
class RemoteDump:
    """The stacks that a rank of a host was asked to write: the host waits for them, and says when they are here."""

    questions: Sequence[Question]
    is_handling: bool = True

    def poll(self) -> bool:
        """Return whether they are here, or the rank has ended."""
        return all(question.is_over for question in self.questions)


@dataclass
class HostedPool(RankPool):
    """A pool whose launcher starts ranks on hosts.

    Attributes:
        at_first: the environment variables with which the controller began.
        local: variables of the ranks of this machine: the network interface on which they reach the others.
    """

    launcher: HostLauncher = field(kw_only=True)
    at_first: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    local: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def _new_group(self, world: Any) -> RankGroup:
        group = super()._new_group(world)
        group.refresh = Refresh(self.launcher.hosts, lambda: group.processes)
        return group

    def _new_process(self, rank: int, shared: SharedFiles) -> RankProcess:
        number = self.launcher.start(shared)
        if self.launcher.host_of(rank) is None:
            return RankProcess(rank, number, shared)
        return RemoteRankProcess(rank, number, shared, hosts=self.launcher.hosts)

    def _environment(self, rank: int) -> dict[str, str]:
        ours = super()._environment(rank)
        host = self.launcher.host_of(rank)
        return {**self.local, **ours} if host is None else environment_on(host, ours, self.at_first)


@dataclass
class Refresh:
    """Brings the copies of the remote ranks' files up to date."""

    hosts: Hosts
    processes: Callable[[], Collection[RankProcess]]
    _not_before: float = 0.0

    def __call__(self, *, now: bool) -> None:
        """Bring them up to date; unless `now`, only if that takes a small share of the time."""
        began = time.monotonic()
        if not now and began < self._not_before:
            return
        self.hosts.ask("update", [one.pid for one in self.processes() if isinstance(one, RemoteRankProcess)])
        ended = time.monotonic()
        self._not_before = ended + (ended - began) / _SHARE
