"""The world of a distributed test: the number of ranks, the backend and the device. Ranks as text."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from pytest_ddp.settings import SIMULATED

_RANKS_IN_FULL = 16
RANK_ORDER = "rank_order"
DEFAULT_BACKEND = {"cpu": "gloo", "cuda": "nccl"}


@dataclass(frozen=True)
class World:
    """The properties of a process group: `size` ranks use `backend` for tensors on `device` ("cpu" or "cuda").

    `gpus` are the GPUs of the ranks, in rank order; if empty, a rank uses the GPU of its local rank. `observe` records
    every operation of the group, and of the groups that are made from it. Without `has_group`, the ranks have no
    default process group. `nodes` are the numbers of the nodes of the ranks; if empty, all run on this one.
    `reduction` is the order in which reductions of simulated ranks add.
    """

    size: int
    backend: str = "gloo"
    device: str = "cpu"
    gpus: tuple[int, ...] = ()
    observe: bool = False
    has_group: bool = True
    nodes: tuple[int, ...] = ()
    reduction: str = RANK_ORDER

    @property
    def simulated(self) -> bool:
        """Whether its ranks are threads of one process."""
        return self.backend == SIMULATED

    @property
    def processes(self) -> int:
        """How many processes its ranks are."""
        return 1 if self.simulated else self.size

    def node_of(self, rank: int) -> int:
        """Return the number of a rank's node among the nodes of this world, from 0."""
        return sorted(set(self.nodes)).index(self.nodes[rank]) if self.nodes else 0

    def local_rank(self, rank: int) -> int:
        """Return the number of a rank among the ranks on its node."""
        return self.nodes[:rank].count(self.nodes[rank]) if self.nodes else rank

    def local_size(self, rank: int) -> int:
        """Return how many ranks are on a rank's node."""
        return self.nodes.count(self.nodes[rank]) if self.nodes else self.size

    def __str__(self) -> str:
        ranks = "1 rank" if self.size == 1 else f"{self.size} ranks"
        if len(set(self.nodes)) > 1:
            ranks += f" on {len(set(self.nodes))} nodes"
        observed, no_group = ", observed" if self.observe else "", "" if self.has_group else ", no group"
        reduction = "" if self.reduction == RANK_ORDER else f", reduction {self.reduction}"
        return f"{ranks}, {self.backend}, {self.device}{observed}{no_group}{reduction}"


def rank_list(ranks: Iterable[int]) -> str:
    """Return "rank 1" or "ranks 0, 2"; of many ranks "ranks 0-62, 64"."""
    numbers = [str(rank) for rank in ranks]
    if len(numbers) > _RANKS_IN_FULL:
        numbers = format_ranks(tuple(map(int, numbers))).split(",")
    return f"rank{'s' if len(numbers) > 1 or '-' in numbers[0] else ''} {', '.join(numbers)}"


@lru_cache
def format_ranks(ranks: tuple[int, ...]) -> str:
    """Return ranks in their order as compact text, such as "0-3,6"."""
    numbered = enumerate(ranks)
    runs = [[rank for _, rank in run] for _, run in groupby(numbered, key=lambda pair: pair[1] - pair[0])]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


@lru_cache
def parse_ranks(text: str) -> tuple[int, ...]:
    """Return the ranks in a text that `format_ranks` made; raise ValueError for any other text."""
    ranks: list[int] = []
    for part in filter(None, text.split(",")):
        found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part)
        if found is None:
            raise ValueError(f"not a list of ranks: {text!r}")
        first, last = int(found[1]), int(found[2] or found[1])
        ranks.extend(range(first, last + 1))
    return tuple(ranks)
