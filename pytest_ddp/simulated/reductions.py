"""The order in which a simulated reduction adds the tensors of its ranks.

"rank_order": ((x0 + x1) + x2) + x3, one after the other.
"ring": as in a ring all-reduce: part k of the elements is added in the order k, k+1, ..., n-1, 0, ..., k-1.
"tree": (x0 + x1) + (x2 + x3), in pairs.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import torch

Reduction = Literal["rank_order", "ring", "tree"]
Combine = Callable[[torch.Tensor, torch.Tensor], object]

_IN_PLACE: dict[str, Combine] = {
    "SUM": torch.Tensor.add_,
    "AVG": torch.Tensor.add_,
    "PREMUL_SUM": torch.Tensor.add_,
    "PRODUCT": torch.Tensor.mul_,
    "MIN": lambda total, one: torch.minimum(total, one, out=total),
    "MAX": lambda total, one: torch.maximum(total, one, out=total),
    "BAND": torch.Tensor.bitwise_and_,
    "BOR": torch.Tensor.bitwise_or_,
    "BXOR": torch.Tensor.bitwise_xor_,
}


def reduced(tensors: Sequence[torch.Tensor], operation: str, order: Reduction) -> torch.Tensor:
    """Return the reduction of tensors of one shape, dtype and layout; none of them is changed.

    Args:
        tensors: one of each rank, in the order of the ranks.
        operation: as `torch.distributed.ReduceOp` names it: "SUM", "AVG", "MAX", ...
        order: see the module.
    """
    total = _ORDERS[order](tensors, _IN_PLACE[operation])
    return total.div_(len(tensors)) if operation == "AVG" else total


def _in_rank_order(tensors: Sequence[torch.Tensor], combine: Combine) -> torch.Tensor:
    total = tensors[0].clone()
    for one in tensors[1:]:
        combine(total, one)
    return total


def _in_a_ring(tensors: Sequence[torch.Tensor], combine: Combine) -> torch.Tensor:
    result = torch.empty_like(tensors[0], memory_format=torch.contiguous_format)
    flat = [one.reshape(-1).tensor_split(len(tensors)) for one in tensors]
    for part, target in enumerate(result.view(-1).tensor_split(len(tensors))):
        target.copy_(_in_rank_order([one[part] for one in flat[part:] + flat[:part]], combine))
    return result


def _in_a_tree(tensors: Sequence[torch.Tensor], combine: Combine) -> torch.Tensor:
    level = [one.clone() for one in tensors]
    while len(level) > 1:
        for left, right in zip(level[::2], level[1::2], strict=False):
            combine(left, right)
        level = level[::2]
    return level[0]


_ORDERS = {"rank_order": _in_rank_order, "ring": _in_a_ring, "tree": _in_a_tree}
