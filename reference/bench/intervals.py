"""Arithmetic of time intervals: how long anything ran, and how much of one kind ran during another.

An interval is (start, end), in any unit of time.
"""

from collections.abc import Iterable

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The times that any of the intervals covers: disjoint intervals in order."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > start:
            merged.append((start, end))
    return merged


def total(intervals: Iterable[Interval]) -> float:
    """How long at least one of the intervals runs."""
    return sum(end - start for start, end in union(intervals))


def overlap(first: Iterable[Interval], second: Iterable[Interval]) -> float:
    """How long an interval of each kind runs at the same time."""
    first, second = union(first), union(second)
    shared = 0.0
    position = 0
    for start, end in first:
        while position < len(second) and second[position][1] <= start:
            position += 1
        for other_start, other_end in second[position:]:
            if other_start >= end:
                break
            shared += min(end, other_end) - max(start, other_start)
    return shared


def exposed(communication: Iterable[Interval], computation: Iterable[Interval]) -> float:
    """How long communication runs while nothing is computed."""
    communication = list(communication)
    return total(communication) - overlap(communication, computation)
