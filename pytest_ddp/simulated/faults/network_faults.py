"""Makes the faults of a plan happen where simulated ranks launch operations."""

from collections.abc import Callable, Iterable
from typing import Any

import torch

from pytest_ddp.planning.faults import Corrupt, Crash, Delay, Fault, Partition
from pytest_ddp.simulated.operation import Launch
from pytest_ddp.simulated.problems import PeerLost, RankKilled
from pytest_ddp.torch_internals import no_python_dispatch


class NetworkFaults:
    """Called with each launch, in the thread of its rank, before it is matched.

    Args:
        plan: the faults; those without a place in the network have no effect here.
        others_run: lets the other ranks run as far as they can.

    Attributes:
        killed: the ranks that were killed. A killed rank makes no operation any more.
    """

    def __init__(self, plan: Iterable[Fault], others_run: Callable[[], None]) -> None:
        self._plan = tuple(plan)
        self._others_run = others_run
        self._separations = [Separation(fault) for fault in self._plan if isinstance(fault, Partition)]
        self.killed: set[int] = set()

    def __call__(self, launch: Launch) -> None:
        """Let the faults happen that belong to this launch; raise RankKilled or PeerLost where they do."""
        self.check_alive(launch.rank)
        for separation in self._separations:
            separation.check(launch.rank, launch.name, launch.peers)
        for fault in self._plan:
            if isinstance(fault, Crash | Delay | Corrupt) and (fault.rank, fault.at) == (launch.rank, launch.name):
                self._happen(fault, launch)

    def kill(self, rank: int, place: str) -> None:
        """Raise RankKilled; the rank does nothing any more."""
        self.killed.add(rank)
        raise RankKilled(f"rank {rank} was killed at {place}")

    def check_alive(self, rank: int) -> None:
        """Raise RankKilled in a rank that was killed."""
        if rank in self.killed:
            raise RankKilled(f"rank {rank} is dead", dead_before=True)

    def before_file(self, rank: int, place: str) -> None:
        """Raise RankKilled in a rank that is killed at an operation on files, or was killed."""
        self.check_alive(rank)
        if any(isinstance(fault, Crash) and (fault.rank, fault.at) == (rank, place) for fault in self._plan):
            self.kill(rank, place)

    def _happen(self, fault: Crash | Delay | Corrupt, launch: Launch) -> None:
        match fault:
            case Crash():
                self.kill(launch.rank, launch.name)
            case Delay():
                for _ in range(fault.turns):
                    self._others_run()
            case Corrupt():
                launch.when_landed.append(lambda: flip(launch.call.outputs, fault.bit))


class Separation:
    """Which ranks a partition has cut off so far."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._parted: set[int] = set()

    def check(self, rank: int, name: str, peers: Iterable[int]) -> None:
        """Raise PeerLost if an operation that a rank is about to make has ranks that it does not reach."""
        if name == self._partition.at:
            self._parted.add(rank)
        if name == self._partition.until:
            self._parted.discard(rank)
        side = next((side for side in self._partition.sides if rank in side), (rank,))
        lost = sorted(set(peers) - set(side))
        if rank in self._parted and lost:
            names = ", ".join(map(str, lost))
            raise PeerLost(f"Connection closed by peer: the network between rank {rank} and ranks {names} is down")


def flip(tensors: list[torch.Tensor], bit: int) -> None:
    """Flip a bit of the first tensor; nothing if there is none."""
    tensor: Any = next((one for one in tensors if one.numel()), None)
    if tensor is None:
        return
    with torch.no_grad(), no_python_dispatch():
        data = tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
        place = bit // 8 % data.numel()
        data[place] = data[place] ^ (1 << bit % 8)
