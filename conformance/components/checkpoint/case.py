"""What `checkpoint` is asked: to save a training that goes on in another world; and the numbers for it."""

from dataclasses import dataclass

import torch

from conformance.scenarios.drawn import Case
from conformance.workload.numbers import FEATURES, Tensors, generator_of, small_network


@dataclass(frozen=True, repr=False)
class CheckpointCase(Case):
    """A training that is saved by one world and goes on in another.

    Attributes:
        load_world_size: ranks that load.
        before, after: steps before saving and after loading.
        scaled: whether there is a gradient scaler.
        apart: whether each rank is given a path in a folder of its own; none is loaded.
        failing: whether a second save, to the same path, fails half way.
        again: whether there was a save to the same path before, at the beginning of training.
        unscaled: whether training goes on without the gradient scaler.
        goes_on: whether the training that was saved goes on, too.
        other_disk: whether the path is on another disk than temporary files are.
        later: whether what comes of training on is saved too, to a path that differs in its suffix alone.
        reloaded: whether the world that loads saves to the same path at the end, and loads that again.
    """

    load_world_size: int = 1
    before: int = 2
    after: int = 2
    scaled: bool = True
    apart: bool = False
    failing: bool = False
    again: bool = False
    unscaled: bool = False
    goes_on: bool = False
    other_disk: bool = False
    later: bool = False
    reloaded: bool = False

    @property
    def worlds(self) -> tuple[int, ...]:
        """The world that saves, and the one that loads."""
        return (self.world_size, self.load_world_size)


def numbers(case: CheckpointCase, seed: int, rank: int) -> Tensors:
    """Draw weights and batches that all ranks share, other weights of each rank's own to load over, and the epoch.

    Each rank also gets a seed of its own for the global generator.
    """
    shared, own = generator_of(seed), generator_of(seed + 1 + rank)
    given: Tensors = {"epoch": torch.tensor(seed % 3), "own": torch.tensor(seed % 1000 + 1 + rank)}
    for name, shape in small_network().items():
        for whose, generator in (("start", shared), ("other", own)):
            value = torch.randn(shape, generator=generator, dtype=torch.float64)
            given[f"{whose}/{name.replace('2.', 'submodule.')}"] = value
    for step in range(case.before + case.after):
        given[f"x/{step}"] = torch.randn(4, FEATURES, generator=shared, dtype=torch.float64)
        given[f"y/{step}"] = torch.randn(4, 1, generator=shared, dtype=torch.float64)
    return given
