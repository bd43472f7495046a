"""The numbers of a case: what each rank is given, drawn from one integer, as for scenarios."""

from collections.abc import Callable
from typing import Any

import torch

from conformance.components.fsdp.case import FsdpCase
from conformance.scenarios.case import Case
from conformance.scenarios.cases import (
    AccumulationCase,
    CheckpointCase,
    EvaluationCase,
    GeneratorCase,
    OverheadCase,
    SamplerCase,
    SyncBatchNormCase,
)
from conformance.workload.accuracy import draw_right
from conformance.workload.numbers import Tensors, draw_inputs


def draw_feed(case: Case, seed: int) -> list[list[Tensors]]:
    """Return what each rank of each world of a case is given, by name."""
    return [[_FEEDS[type(case)](case, seed, rank) for rank in range(world)] for world in case.worlds]


def _overhead(case: OverheadCase, seed: int, rank: int) -> Tensors:
    """Draw s (bytes), w (bytes per second), o (seconds) and a number of buckets, in ranges met in practice."""
    numbers = torch.rand(4, generator=_generator(seed + rank), dtype=torch.float64).tolist()
    s, w, o, buckets = (10 ** (low + wide * x) for (low, wide), x in zip(_RANGES, numbers, strict=True))
    return {name: torch.tensor(x, dtype=torch.float64) for name, x in zip("swo", (s, w, o), strict=True)} | {
        "n_b": torch.tensor(1 if case.single else max(2, int(buckets)))
    }


def _seeds(case: SamplerCase | GeneratorCase, seed: int, rank: int) -> Tensors:
    """Draw the seed that all ranks share, 0 in the simplest case, and one for each rank's own global generator."""
    return {"seed": torch.tensor(seed % 1000 if case.seed else 0), "own": torch.tensor(seed % 1000 + 1 + rank)}


def _evaluation(case: EvaluationCase, seed: int, rank: int) -> Tensors:
    """Draw the classifier that all ranks share, and this rank's samples, as many labelled rightly as was drawn.

    The class of a sample has the largest share of the probability, and less than half of it.
    """
    generator = _generator(seed)
    corners = _LENGTH * torch.tensor(_CORNERS, dtype=torch.bfloat16 if case.half else torch.float64)
    weight = corners[torch.randperm(_CLASSES, generator=generator)]
    right = draw_right(case.sizes, generator)[rank]
    own = _generator(seed + 1 + rank)
    given: Tensors = {"weight": weight}
    for batch, (size, correct) in enumerate(zip(case.sizes[rank], right, strict=True)):
        x = weight[torch.randint(_CLASSES, (size,), generator=own)] / 8
        wrong = torch.randperm(size, generator=own) >= correct
        given |= {f"x/{batch}": x, f"y/{batch}": ((x @ weight.T).argmax(1) + wrong.long()) % _CLASSES}
    return given


def _accumulation(case: AccumulationCase, seed: int, rank: int) -> Tensors:
    """Draw weights that all ranks share, and micro-batches of this rank's own."""
    shared, own = _generator(seed), _generator(seed + 1 + rank)
    given = {name: torch.randn(shape, generator=shared, dtype=torch.float64) for name, shape in small_network().items()}
    for step in range(case.steps):
        for micro in range(case.micro(step)):
            x = torch.randn(case.samples, _FEATURES, generator=own, dtype=torch.float64)
            y = torch.randn(case.samples, 1, generator=own, dtype=torch.float64) + rank + micro
            broken = step == 0 and micro == 0 and rank == case.overflow
            given |= {f"x/{step}/{micro}": x * torch.inf if broken else x, f"y/{step}/{micro}": y}
    return given


def _sync_batchnorm(case: SyncBatchNormCase, seed: int, rank: int) -> Tensors:
    """Draw what the norm starts with, the same on all ranks, and inputs and output gradients of this rank's own."""
    shared, own = _generator(seed), _generator(seed + 1 + rank)
    numbers = 0.5 + torch.rand(4, CHANNELS, generator=shared, dtype=torch.float64)
    start = dict(zip(("weight", "bias", "running_mean", "running_var"), numbers, strict=True))
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


def _checkpoint(case: CheckpointCase, seed: int, rank: int) -> Tensors:
    """Draw weights and batches that all ranks share, other weights of each rank's own to load over, and the epoch.

    Each rank also gets a seed of its own for the global generator.
    """
    shared, own = _generator(seed), _generator(seed + 1 + rank)
    given: Tensors = {"epoch": torch.tensor(seed % 3), "own": torch.tensor(seed % 1000 + 1 + rank)}
    for name, shape in small_network().items():
        for whose, generator in (("start", shared), ("other", own)):
            value = torch.randn(shape, generator=generator, dtype=torch.float64)
            given[f"{whose}/{name.replace('2.', 'submodule.')}"] = value
    for step in range(case.before + case.after):
        given[f"x/{step}"] = torch.randn(4, _FEATURES, generator=shared, dtype=torch.float64)
        given[f"y/{step}"] = torch.randn(4, 1, generator=shared, dtype=torch.float64)
    return given


def _fsdp(case: FsdpCase, seed: int, rank: int) -> Tensors:
    """Draw what a training with a wrapper gets, but equal buffers, and equal weights where ranks are to start alike."""
    inputs = draw_inputs(case.scenario, seed)
    weights = inputs[0 if case.alike else rank].weights
    given = {f"weight/{name}": value for name, value in weights.items()}
    given |= {f"buffer/{name}": value for name, value in inputs[0].buffers.items()}
    for step, (x, y) in enumerate(inputs[rank].batches):
        given |= {f"x/{step}": x, f"y/{step}": y}
    return given


def small_network() -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the parameters of a small network of two linear layers."""
    return {"0.weight": (2, _FEATURES), "0.bias": (2,), "2.weight": (1, 2), "2.bias": (1,)}


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


LEARNING_RATE, MOMENTUM, WEIGHT_DECAY, SCALE = 0.1, 0.5, 0.2, 2.0**10  # of what accumulates gradients
_FEATURES, _CLASSES = 3, 4
OTHER_LABELS = _CLASSES - 1  # further on, modulo their number: labels that were wrong are right then, and the reverse
_CORNERS = ((1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1))  # of classes: no rounding moves a sample to another one
_LENGTH = 1.1  # no number of float32
CHANNELS = 3
_RANGES = ((6.0, 4.0), (8.0, 3.0), (-6.0, 3.0), (0.3, 1.7))
_FEEDS: dict[type[Case], Callable[[Any, int, int], Tensors]] = {
    OverheadCase: _overhead,
    SamplerCase: _seeds,
    EvaluationCase: _evaluation,
    GeneratorCase: _seeds,
    AccumulationCase: _accumulation,
    SyncBatchNormCase: _sync_batchnorm,
    CheckpointCase: _checkpoint,
    FsdpCase: _fsdp,
}
