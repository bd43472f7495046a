"""Ways to deal parameters out to ranks, for scenarios in which each of them leaves every rank something."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import prod

from conformance.scenarios.model_spec import ModelSpec

Owners = Iterable[int]


def leaves_nobody_empty(model: ModelSpec, names: Iterable[str], ranks: int) -> bool:
    """Return whether every rank gets a parameter, however these parameters of a model are dealt out.

    They are dealt by count (in turn, or as many to each), or in contiguous parts of about the same number of elements,
    or bytes, which differ by a factor here: by the place of a parameter's first, middle or last element, or by filling
    one rank after the other.
    """
    sizes = [prod(model.shapes[name]) for name in names]
    if len(sizes) < ranks or not all(sizes):
        return False
    return all(len(set(owners)) == ranks for owners in (*_by_place(sizes, ranks), _filled(sizes, ranks)))


def _by_place(sizes: Sequence[int], ranks: int) -> Iterable[Owners]:
    """Yield the owners by the place of an element among all elements: the first, the middle one, the last."""
    ends, total = list(accumulate(sizes)), sum(sizes)
    for before_the_end in (list(sizes), [(size + 1) // 2 for size in sizes], [1] * len(sizes)):
        yield [(end - back) * ranks // total for end, back in zip(ends, before_the_end, strict=True)]


def _filled(sizes: Sequence[int], ranks: int) -> Owners:
    """Return the owners where a rank takes parameters until it has its share, and then the next one does."""
    owners, owner, held = list[int](), 0, 0
    for size in sizes:
        if held * ranks >= sum(sizes) and owner < ranks - 1:
            owner, held = owner + 1, 0
        owners.append(owner)
        held += size
    return owners
