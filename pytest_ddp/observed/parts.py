"""How many numbers an operation moves from each rank of its group to each other one, where that may differ."""

from collections.abc import Sequence
from itertools import groupby
from math import prod

from pytest_ddp.observed.entry import Entry, Shapes

_LONGEST = 150  # characters
_MOST = 100_000

Parts = tuple[int, ...]


def given(entry: Entry) -> Parts:
    """Return how many numbers this rank gives to each rank, () where nothing is to be compared."""
    size = len(entry.ranks)
    match entry.op:
        case "all_gather" | "gather":
            return _sizes(entry.shapes) * size
        case "scatter":
            return _sizes(entry.shapes) if entry.outputs else ()
        case "all_to_all":
            return _sizes(entry.shapes)
        case "all_to_all_single":
            return _rows(entry.shapes, entry.splits[0], size)
    return ()


def taken(entry: Entry) -> Parts:
    """Return how many numbers this rank takes from each rank; () where nothing is to be compared."""
    size = len(entry.ranks)
    match entry.op:
        case "all_gather" | "gather" | "all_to_all":
            return _sizes(entry.outputs)
        case "scatter":
            return _sizes(entry.outputs or entry.shapes) * size
        case "all_to_all_single":
            return _rows(entry.outputs, entry.splits[1], size)
    return ()


def _sizes(shapes: Shapes) -> Parts:
    return tuple(prod(shape) for shape in shapes)


def _rows(shapes: Shapes, splits: Sequence[int], size: int) -> Parts:
    """Return the sizes of the parts that the first dimension of a tensor is split into, evenly for no splits."""
    (shape,) = shapes
    rows, row = (shape[0], prod(shape[1:])) if shape else (1, 1)
    return tuple(split * row for split in splits) or (rows // size * row,) * size


def parts_text(parts: Parts) -> str:
    """Return parts as text such as "4x3,7"; "" for more of them than a notice has room for."""
    runs = [(size, len(list(run))) for size, run in groupby(parts)]
    text = ",".join(f"{size}x{count}" for size, count in runs)
    return text if len(text) <= _LONGEST else ""


def parts_of(text: str) -> Parts:
    """Return what `parts_text` wrote; raise ValueError for anything else."""
    runs = (part.split("x") for part in filter(None, text.split(",")))
    return tuple(int(size) for size, count in runs for _ in range(min(int(count), _MOST)))
