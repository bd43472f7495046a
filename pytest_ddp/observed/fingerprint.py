"""Makes the fingerprint of an entry."""

from collections.abc import Sequence
from math import prod

import torch.distributed as dist

from pytest_ddp.observed.events import Entry, Shapes
from pytest_ddp.operations.fingerprint import ANY_RANK, Fingerprint, shapes_text, source_text
from pytest_ddp.operations.table import RECV

Sizes = tuple[int, ...]


def fingerprint_of(entry: Entry, rank: int, *, after_any_rank: bool = False) -> Fingerprint:
    """Return the fingerprint of an operation that `rank` enters; `after_any_rank` as in `Fingerprint`."""
    return Fingerprint(
        op=entry.op,
        group=entry.group,
        ranks=entry.ranks,
        number=entry.sequence,
        rank=rank,
        peer=ANY_RANK if entry.op == RECV and entry.peer is None else entry.peer,
        tag=entry.tag,
        root=entry.root,
        reduction=entry.reduce_op,
        dtype=entry.dtype,
        shapes=shapes_text(entry.shapes),
        elements=sum(map(prod, entry.shapes)),
        sends=sends(entry),
        receives=receives(entry),
        source=source_text(entry.line),
        asynchronous=entry.asynchronous,
        after_any_rank=after_any_rank,
        default=entry.group == getattr(dist.group.WORLD, "group_name", None),
    )


def sends(entry: Entry) -> Sizes:
    """Return how many elements the rank sends to each rank of the group; () where there is nothing to compare."""
    size = len(entry.ranks)
    match entry.op:
        case "all_gather" | "gather":
            return _sizes(entry.shapes) * size
        case "scatter":
            return _sizes(entry.shapes) if entry.outputs else ()
        case "all_to_all":
            return _sizes(entry.shapes)
        case "all_to_all_single":
            return _split_sizes(entry.shapes, entry.splits[0], size)
    return ()


def receives(entry: Entry) -> Sizes:
    """Return how many elements the rank receives from each rank of the group; () where there is nothing to compare."""
    size = len(entry.ranks)
    match entry.op:
        case "all_gather" | "gather" | "all_to_all":
            return _sizes(entry.outputs)
        case "scatter":
            return _sizes(entry.outputs or entry.shapes) * size
        case "all_to_all_single":
            return _split_sizes(entry.outputs, entry.splits[1], size)
    return ()


def _sizes(shapes: Shapes) -> Sizes:
    return tuple(prod(shape) for shape in shapes)


def _split_sizes(shapes: Shapes, splits: Sequence[int], size: int) -> Sizes:
    """Return the sizes of the parts that the first dimension of a tensor is split into, evenly without splits."""
    (shape,) = shapes
    rows, row = (shape[0], prod(shape[1:])) if shape else (1, 1)
    return tuple(split * row for split in splits) or (rows // size * row,) * size
