"""The value of the fixture `ddp` on a rank."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from pytest_ddp.observed import collectives
from pytest_ddp.observed.inspection.collectives import Collectives
from pytest_ddp.protocol.messages import Run
from pytest_ddp.rank.process_group import device_of
from pytest_ddp.rank.worker import Rank


@dataclass
class RankContext:
    """This rank in the world of the test that runs (see `DDPContext`)."""

    seed: int = 0
    _shared_path: str = ""

    @property
    def rank(self) -> int:
        """This rank, from 0 to world_size - 1."""
        return Rank.current.launch.rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._run.size

    @property
    def local_rank(self) -> int:
        """The rank among the ranks of this machine."""
        return self.rank

    @property
    def device(self) -> torch.device:
        """The device for this rank's tensors."""
        return device_of(self.rank, self._run)

    @property
    def backend(self) -> str:
        """The backend of the group."""
        return self._run.backend

    @property
    def group(self) -> dist.ProcessGroup:
        """The default process group."""
        if dist.group.WORLD is None:
            raise RuntimeError("this rank has no process group: the test has destroyed it")
        return dist.group.WORLD

    @property
    def shared_path(self) -> Path:
        """A folder that the ranks of this test share; it is made when a rank first reads this."""
        path = Path(self._shared_path)
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def collectives(self) -> Collectives:
        """The record of this test's operations."""
        return collectives()

    def start_test(self, seed: int, shared_path: str) -> None:
        """Set the seed and the folder of the next test."""
        self.seed, self._shared_path = seed, shared_path

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.world_size}, {self.backend}, {self.device}>"

    @property
    def _run(self) -> Run:
        if Rank.current.run is None:
            raise RuntimeError("no test is running on this rank")
        return Rank.current.run
