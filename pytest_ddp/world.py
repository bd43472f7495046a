"""The world that a distributed test asks for: how many ranks, over which backend, on which device."""

from collections.abc import Iterable
from dataclasses import dataclass

DEFAULT_BACKEND = {"cpu": "gloo", "cuda": "nccl"}


@dataclass(frozen=True)
class World:
    """One process group to be: `size` ranks over `backend`, with tensors on `device` ("cpu" or "cuda").

    `gpus` are the GPUs of the ranks, in rank order; left out, rank r takes GPU r. With `observe`, everything that goes
    through the group, and through those made from it, is recorded.
    """

    size: int
    backend: str = "gloo"
    device: str = "cpu"
    gpus: tuple[int, ...] = ()
    observe: bool = False

    def __str__(self) -> str:
        ranks = "1 rank" if self.size == 1 else f"{self.size} ranks"
        return f"{ranks}, {self.backend}, {self.device}{', observed' if self.observe else ''}"


def rank_list(ranks: Iterable[int]) -> str:
    """Return "rank 1" or "ranks 0, 2"."""
    numbers = [str(rank) for rank in ranks]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
