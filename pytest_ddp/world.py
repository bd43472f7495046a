"""The world that a distributed test asks for: how many ranks, over which backend, on which device."""

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
