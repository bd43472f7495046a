"""Makes the fingerprint of an entry."""

from math import prod

import torch.distributed as dist

from pytest_ddp.observed.events import Entry, Shapes
from pytest_ddp.operations.fingerprint import ANY_RANK, Fingerprint, shapes_text, source_text
from pytest_ddp.operations.table import RECV

Sizes = tuple[int, ...]
_ONE_FOR_EACH_RANK = frozenset({"all_gather", "gather", "scatter", "all_to_all"})


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
    is_scattered = entry.op == "scatter" and not entry.outputs  # by another rank
    given = () if is_scattered else entry.shapes
    return _sizes(entry, given, entry.splits[0], repeated=entry.op in {"all_gather", "gather"})


def receives(entry: Entry) -> Sizes:
    """Return how many elements the rank receives from each rank of the group; () where there is nothing to compare."""
    is_scatter = entry.op == "scatter"
    wanted = entry.outputs or (entry.shapes if is_scatter else ())
    return _sizes(entry, wanted, entry.splits[1], repeated=is_scatter)


def _sizes(entry: Entry, shapes: Shapes, splits: Sizes, *, repeated: bool) -> Sizes:
    """Return a size for each rank: of its own tensor, of the one for all if `repeated`, or of a part of one tensor."""
    size = len(entry.ranks)
    if entry.op == "all_to_all_single":
        (shape,) = shapes
        rows, row = (shape[0], prod(shape[1:])) if shape else (1, 1)
        return tuple(split * row for split in splits) or (rows // size * row,) * size
    return tuple(map(prod, shapes)) * (size if repeated else 1) if entry.op in _ONE_FOR_EACH_RANK else ()
