"""What `sync_batchnorm` is asked: to convert a batch norm, which then trains and evaluates; and the numbers for it."""

from dataclasses import dataclass

import torch

from conformance.scenarios.drawn import Case
from conformance.workload.numbers import Tensors, generator_of

CHANNELS = 3


@dataclass(frozen=True, repr=False)
class SyncBatchNormCase(Case):
    """A batch norm that is converted, trained and evaluated.

    Attributes:
        sizes: samples per batch, of each rank.
        dimensions: of the input: 2 for (N, C), 3 for (N, C, L), 4 for (N, C, H, W), 5 for (N, C, D, H, W).
        steps: forwards and backwards.
        eps, momentum, affine, tracked: options of the norm; `tracked` is `track_running_stats`.
        frozen: whether weight and bias do not require gradients.
        evaluating: whether the model is in evaluation mode when it is converted, and stays in it.
        bare: whether the model is the norm alone.
        at_once: whether all forwards come before the first backward.
        far: whether norm and inputs are in float32, and the inputs' mean is thousands of times their spread.
        transposed: whether inputs lie in memory in the reverse order of their dimensions.
        stretched: whether each rank's inputs, of three dimensions, are longer than those of the rank before.
        first: whether the norm comes first in the model: its inputs need no gradient.
        without_gradients: whether steps are forwards alone, with gradients turned off.
        shared: whether the model holds the norm at a second place, too, where it is not called.
    """

    sizes: tuple[int, ...] = (2,)
    dimensions: int = 2
    steps: int = 1
    eps: float = 1e-5
    momentum: float | None = 0.1
    affine: bool = True
    tracked: bool = True
    frozen: bool = False
    evaluating: bool = False
    bare: bool = False
    at_once: bool = False
    far: bool = False
    transposed: bool = False
    stretched: bool = False
    first: bool = False
    without_gradients: bool = False
    shared: bool = False

    @property
    def state(self) -> tuple[str, ...]:
        """The names in the norm's `state_dict`."""
        tracked = ("running_mean", "running_var", "num_batches_tracked")
        return ("weight", "bias") * self.affine + tracked * self.tracked

    @property
    def prefix(self) -> str:
        """What comes before them in the model's."""
        return "" if self.bare else "1.0."


def numbers(case: SyncBatchNormCase, seed: int, rank: int) -> Tensors:
    """Draw what the norm starts with, the same on all ranks, and inputs and output gradients of this rank's own."""
    shared, own = generator_of(seed), generator_of(seed + 1 + rank)
    drawn = 0.5 + torch.rand(4, CHANNELS, generator=shared, dtype=torch.float64)
    start = dict(zip(("weight", "bias", "running_mean", "running_var"), drawn, strict=True))
    start["num_batches_tracked"] = torch.tensor(3)
    given: Tensors = {name: start[name] for name in case.state}
    shape = (case.sizes[rank], CHANNELS, *(3 + rank * case.stretched, 2, 2)[: case.dimensions - 2])
    for step in range(case.steps):
        x, gradient = torch.randn(2, *shape, generator=own, dtype=torch.float64)
        given |= {f"x/{step}": (1 + rank) * x + rank, f"gradient/{step}": gradient}
    return _far(given, shared, rank) if case.far else given


def _far(given: Tensors, shared: torch.Generator, rank: int) -> Tensors:
    """Take inputs far from zero, with a variance of 1 on each rank and means half of 1 apart; all in float32."""
    mean = 8500 + 1000 * torch.rand(CHANNELS, generator=shared, dtype=torch.float64) + rank / 2
    for name in [name for name in given if name.startswith("x/")]:
        x = given[name].transpose(0, 1).flatten(1)
        variance, own = torch.var_mean(x, 1, correction=0, keepdim=True)
        x = (x - own) / variance.sqrt() + mean[:, None]
        given[name] = x.view_as(given[name].transpose(0, 1)).transpose(0, 1).contiguous()
    return {name: value.float() if value.is_floating_point() else value for name, value in given.items()}
