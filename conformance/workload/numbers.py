"""The numbers of a scenario: each rank's initial weights and batches, all drawn from one seed.

They are drawn in float64 and then rounded to their dtype. The seed depends on a secret of the run, so a submission
cannot know its inputs or the expected results in advance. A script draws the same numbers from the seed alone.
"""

import hashlib
from dataclasses import dataclass, replace

import torch

from conformance.scenarios.drawn import Drawn
from conformance.scenarios.layers import Dtype
from conformance.scenarios.scenario import Scenario

Tensors = dict[str, torch.Tensor]
Batch = tuple[torch.Tensor, torch.Tensor]
WEIGHT_SCALE = 0.7
FAR = 100.0
FEATURES = 3


@dataclass(frozen=True)
class RankInputs:
    """One rank's parameters and buffers, by name, and (inputs, targets) for each micro-batch of each step."""

    weights: Tensors
    buffers: Tensors
    batches: tuple[Batch, ...]

    def by_name(self) -> Tensors:
        """Return all numbers by name: "weight/NAME", "buffer/NAME", and "x/BATCH" and "y/BATCH" of each micro-batch."""
        named = {f"weight/{name}": value for name, value in self.weights.items()}
        named |= {f"buffer/{name}": value for name, value in self.buffers.items()}
        for batch, (x, y) in enumerate(self.batches):
            named |= {f"x/{batch}": x, f"y/{batch}": y}
        return named

    @classmethod
    def from_names(cls, named: Tensors) -> "RankInputs":
        """Return the inputs from the numbers that `by_name` returned."""
        xs, ys = under(named, "x/"), under(named, "y/")
        batches = tuple((xs[batch], ys[batch]) for batch in sorted(xs, key=int))
        return cls(under(named, "weight/"), under(named, "buffer/"), batches)


def torch_dtype(name: Dtype) -> torch.dtype:
    """Return the dtype with this name."""
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense or sparse tensor as a dense one in double precision."""
    return tensor.to_dense().to(torch.complex128 if tensor.is_complex() else torch.float64)


def under(named: Tensors, prefix: str) -> Tensors:
    """Return the tensors whose names have this prefix, by their names without it."""
    found = {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
    return type(named)(found)  # of an answer, looking for what was not sent raises the same


def generator_of(seed: int) -> torch.Generator:
    """Return a new generator with this seed."""
    return torch.Generator().manual_seed(seed)


def small_network() -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the parameters of a small network of two linear layers."""
    return {"0.weight": (2, FEATURES), "0.bias": (2,), "2.weight": (1, 2), "2.bias": (1,)}


def data_seed(secret: str, drawn: Drawn) -> int:
    """Return the seed of the numbers; it stays the same while a scenario or case shrinks."""
    return int.from_bytes(hashlib.sha256(f"{secret}:{drawn.seed}".encode()).digest()[:6], "big")


def draw_inputs(scenario: Scenario, seed: int) -> list[RankInputs]:
    """Return every rank's inputs, in rank order.

    Each rank has its own numbers, except for weights with `equal_start`, and for an optimizer without a wrapper: then
    all ranks have rank 0's weights, and with `replicated` also the concatenated batches of all ranks.
    """
    drawn = [_draw_rank(scenario, seed, rank) for rank in range(scenario.world_size)]
    if scenario.replicated or scenario.averaged:
        drawn = [replace(own, weights=drawn[0].weights, buffers=drawn[0].buffers) for own in drawn]
    if scenario.equal_start:
        drawn = [replace(own, weights=drawn[0].weights) for own in drawn]
    if scenario.replicated:
        whole = tuple(global_batch(drawn, micro) for micro in range(len(drawn[0].batches)))
        drawn = [replace(own, batches=whole) for own in drawn]
    return drawn


def global_batch(inputs: list[RankInputs], micro: int) -> Batch:
    """Return the concatenation of all ranks' samples of a micro-batch."""
    xs, ys = zip(*(own.batches[micro] for own in inputs), strict=True)
    return torch.cat(xs), torch.cat(ys)


def _draw_rank(scenario: Scenario, seed: int, rank: int) -> RankInputs:
    """Draw one rank's numbers. Targets are shifted by the rank, so that gradients of ranks differ in size.

    Weights that are converted from float32 to float64 after wrapping have values that float32 holds.

    For large gradients, all targets are shifted by `FAR`; for infinite gradients, the last rank's targets are infinite.
    """
    generator = generator_of(seed + rank)
    spec = scenario.model
    outputs = spec.widths[-1]
    far = FAR if scenario.large else 0.0
    far += torch.inf if scenario.overflows and rank == scenario.world_size - 1 else 0.0

    def normal(*shape: int, scale: float = 1.0, shift: float = 0.0, dtype: Dtype = spec.dtype) -> torch.Tensor:
        if dtype == "complex128":
            return torch.view_as_complex(normal(*shape, 2, scale=scale, dtype="float64"))
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (scale * drawn + shift).to(torch_dtype(dtype))

    dtypes = spec.dtypes
    weights = {name: normal(*shape, scale=WEIGHT_SCALE, dtype=dtypes[name]) for name, shape in spec.shapes.items()}
    if scenario.converted == "float64":
        weights = {name: value.float().double() for name, value in weights.items()}

    def batch() -> Batch:
        samples = scenario.batch_of(rank)
        if spec.tokens:
            ids = torch.randint(spec.tokens, (samples, spec.inputs), generator=generator)
            return ids, normal(samples, spec.inputs, outputs, shift=rank + far)
        return normal(samples, spec.inputs), normal(samples, outputs, shift=rank + far)

    batches = tuple(batch() for _ in range(scenario.steps * scenario.micro_batches))
    buffers: Tensors = {}
    if spec.buffer:
        buffers = {"offset": normal(outputs), "calls": torch.tensor(2**40 + rank), "mask": normal(outputs)}
    return RankInputs(weights, buffers, batches)


def seeds(drawn: Drawn, seed: int, rank: int) -> Tensors:
    """Return the seed that all ranks share, 0 in the simplest case, and one for each rank's own global generator."""
    return {"seed": torch.tensor(seed % 1000 if drawn.seed else 0), "own": torch.tensor(seed % 1000 + 1 + rank)}
