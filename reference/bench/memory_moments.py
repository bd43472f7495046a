"""What tensors hold at fixed moments of a training: measured on ranks, and what the accounting says about it.

Every rank trains two steps of each strategy, one strategy after the other. The first step shows what the training
keeps, by differences:

    parameters       held at initialisation
    gradients        held before the optimizer's step, less the parameters
    optimizer state  held after the optimizer's step, less parameters and gradients

In the second step all of it exists. What forward adds then are the activations, and the peak is that of any later step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from reference.bench.accounting import StateBytes, exact, paper
from reference.bench.allocations import Watch, watch_allocations
from reference.bench.contestants import Contestant, Workload, batch, size_of
from reference.bench.ranks import gather
from reference.bench.result import Raw
from reference.bench.strategies import Recipe, strategies
from reference.bench.submission import kind
from reference.bench.transformer_costs import Batch, activation_bytes, parameters, shapes
from reference.communication.process_group import current_device

MOMENTS = ("initialisation", "after forward", "before the step", "after the step")


@dataclass(frozen=True)
class Kept:
    """What a training holds on one rank, in bytes.

    Attributes:
        states: parameters, gradients and optimizer state.
        activations: what the second step's forward adds.
        peak: the most that is held in the second step.
    """

    states: StateBytes
    activations: int
    peak: int


# On the ranks


def measure_on_ranks(workload: Workload) -> Raw:
    """Train two steps of each strategy: the moments of each rank."""
    tokens = batch(workload)
    found = {name: gather(watch_training(recipe, tokens)[1]) for name, recipe in strategies(workload).items()}
    return {
        "workload": asdict(workload),
        "world_size": dist.get_world_size(),
        "backend": dist.get_backend(),
        "device": current_device().type,
        "moments": found,
    }


def watch_training(recipe: Recipe, tokens: Tensor) -> tuple[Contestant, list[dict[str, Any]]]:
    """A training after two steps, and their moments: names, bytes held, peak since the moment before."""
    if tokens.is_cuda:
        _warm_up(recipe, tokens)
    with watch_allocations(tokens.device) as watch:
        training = recipe()
        watch.mark("initialisation")
        _step(training, tokens, watch)
        training.optimizer.zero_grad()
        watch.mark("between steps")
        _step(training, tokens, watch)
    return training, [asdict(moment) for moment in watch.moments]


def _warm_up(recipe: Recipe, tokens: Tensor) -> None:
    """Take forward and backward once: cuBLAS allocates its workspaces with torch's allocator, and keeps them."""
    training = recipe()
    torch.autograd.backward(training.loss(tokens))
    training.finish()


def _step(training: Contestant, tokens: Tensor, watch: Watch) -> None:
    loss = training.loss(tokens)
    watch.mark("after forward")
    torch.autograd.backward(loss)
    training.finish()
    del loss
    watch.mark("before the step")
    training.optimizer.step()
    watch.mark("after the step")


# Computed from the moments


def kept(moments: Sequence[Mapping[str, Any]]) -> Kept:
    """What a rank holds, from the moments of its two steps."""
    initial, _, before, after, between, forward, before_2, after_2 = moments
    states = StateBytes(initial["bytes"], before["bytes"] - initial["bytes"], after["bytes"] - before["bytes"])
    peak = max(moment["peak"] for moment in (forward, before_2, after_2))
    return Kept(states, forward["bytes"] - between["bytes"], peak)


@dataclass(frozen=True)
class Paper:
    """What the accounting says about a measured training.

    Attributes:
        parameters: elements of all parameters.
        activations: bytes on each rank after forward.
        formula: bytes of states on each rank, if everything divides evenly.
        exact: the same, counted from the shapes for one rank.
    """

    parameters: int
    activations: int
    formula: StateBytes
    exact: StateBytes


def on_paper(raw: Raw, name: str, rank: int) -> Paper:
    """The accounting for a training of the raw numbers, on one rank."""
    workload, world_size = Workload(**raw["workload"]), raw["world_size"]
    size, vocabulary = size_of(workload.model)
    elements = parameters(size, vocabulary)
    return Paper(
        elements,
        activation_bytes(size, Batch(workload.samples, workload.words), vocabulary),
        paper(kind(name), elements, world_size),
        exact(kind(name), shapes(size, vocabulary), world_size, rank),
    )


def fullest(every: Sequence[Sequence[Mapping[str, Any]]]) -> int:
    """The rank that keeps most, given the moments of every rank."""
    totals = [kept(moments).states.total for moments in every]
    return totals.index(max(totals))
