"""Pure arithmetic of data-parallel training: which tensors are sent together, and which rank owns which parameter."""

import math
from collections.abc import Hashable, Sequence


def fill_buckets(
    sizes: Sequence[int],
    kinds: Sequence[Hashable],
    capacity: float | None,
    first_capacity: float | None = None,
) -> list[list[int]]:
    """Group consecutive items of one kind into buckets that hold at most `capacity`.

    Each kind has one open bucket. An item that does not fit into it closes it and opens the next one. An item that is
    larger than the capacity gets a bucket of its own. So two neighbouring buckets of one kind together exceed the
    capacity of the first one.

    Args:
        sizes: size of each item.
        kinds: kind of each item; items of different kinds never share a bucket.
        capacity: the largest size of a bucket, in the unit of `sizes`; None for no limit.
        first_capacity: the largest size of the first bucket of each kind; None for `capacity`.

    Returns:
        The indices of the items in each bucket. Buckets are ordered by their last item: the order in which they become
        full when the items come one after the other.
    """
    buckets: list[list[int]] = []
    open_bucket: dict[Hashable, list[int]] = {}
    room: dict[Hashable, float] = {}
    for index, (size, kind) in enumerate(zip(sizes, kinds, strict=True)):
        if kind not in room or size > room[kind]:
            limit = capacity if kind in room or first_capacity is None else first_capacity
            open_bucket[kind], room[kind] = [], math.inf if limit is None else limit
            buckets.append(open_bucket[kind])
        open_bucket[kind].append(index)
        room[kind] -= size
    return sorted(buckets, key=lambda bucket: bucket[-1])


def assign_to_least_loaded(sizes: Sequence[int], loads: list[int]) -> list[int]:
    """Assign each item, largest first, to the rank with the smallest load; ties go to the lower item and rank.

    This is longest-processing-time list scheduling. The largest load exceeds the mean by at most `(1 - 1/W)` times the
    largest item (Graham, "Bounds on Multiprocessing Timing Anomalies", 1969).

    Args:
        sizes: size of each item.
        loads: the load of each rank before; increased here by the items that the rank gets.

    Returns:
        The rank of each item.
    """
    owners = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owners[index] = loads.index(min(loads))
        loads[owners[index]] += sizes[index]
    return owners
