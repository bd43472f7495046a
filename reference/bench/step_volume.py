"""The bytes that a training step communicates: counted in a process group that records every operation; by formula.

To compare collectives of different kinds, their bytes are converted to what a rank sends by ring algorithms, on average
(`accounting.sent`). With Psi bytes of parameters and W ranks, in units of Psi (W - 1) / W:

    ddp                  2   an all-reduce of the gradients
    zero1                3   the same, and each owner broadcasts its parameters
    zero1 in the paper   2   a reduce-scatter of the gradients, and an all-gather of the parameters
    fsdp                 3   parameters are gathered in forward and in backward, gradients are reduce-scattered

Ours is used like any optimizer: after a wrapper has averaged the gradients on every rank. The paper's exchanges them
itself, so it can leave out what other ranks own.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020), section 7.
"""

from collections import Counter
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor

from reference.bench.accounting import has_formula, sent, volume
from reference.bench.contestants import size_of
from reference.bench.ranks import gather
from reference.bench.result import Raw
from reference.bench.strategies import Recipe
from reference.bench.submission import kind
from reference.bench.transformer_costs import parameters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_ddp.observed.events import Entry
    from pytest_ddp.observed.inspection.collectives import Collectives

IN_PAPER = "zero1 in the paper"
_KINDS = {  # by the beginnings of their names
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "monitored_barrier": "barrier",
}


# On the ranks


def count_step(make: Recipe, tokens: Tensor, record: "Collectives") -> dict[str, dict[str, int]]:
    """The collectives of a training's second step on rank 0, by kind: how many, and the bytes of whole tensors."""
    training = make()
    training.step(tokens)
    record.clear()
    training.step(tokens)
    return gather(by_kind(record.entries, dist.get_world_size()))[0]


def by_kind(entries: "Iterable[Entry]", world_size: int) -> dict[str, dict[str, int]]:
    """How many collectives of each kind a rank entered, and the bytes of their whole tensors.

    A rank passes its own part to an all-gather, and the whole tensor to other collectives.
    """
    counts, sizes = Counter[str](), Counter[str]()
    for entry in entries:
        operation = next((kind for beginning, kind in _KINDS.items() if entry.op.startswith(beginning)), entry.op)
        counts[operation] += 1
        sizes[operation] += entry.bytes * (world_size if operation == "all_gather" else 1)
    return {operation: {"count": counts[operation], "bytes": sizes[operation]} for operation in counts}


# From the raw numbers


def measured_bytes(raw: Raw, name: str) -> dict[str, float]:
    """Bytes that a rank sends in a step, for each kind of collective that carries any and that has a formula."""
    traffic = {op: each["bytes"] for op, each in raw["traffic"][name].items() if has_formula(op)}
    found = {op: sent(op, size, raw["world_size"]) for op, size in traffic.items()}
    return {op: size for op, size in found.items() if size}


def without_formula(raw: Raw, name: str) -> dict[str, dict[str, int]]:
    """The operations of a step that no formula converts to what a rank sends: how many, and bytes of their tensors."""
    return {op: each for op, each in raw["traffic"][name].items() if not has_formula(op)}


def formula_bytes(raw: Raw, name: str) -> dict[str, float]:
    """The same by the formula."""
    elements = parameters(*size_of(raw["workload"]["model"]))
    in_paper = name == IN_PAPER
    whole = volume("zero1" if in_paper else kind(name), elements, as_in_paper=in_paper)
    return {op: sent(op, size, raw["world_size"]) for op, size in whole.items()}
