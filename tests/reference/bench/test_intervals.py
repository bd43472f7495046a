"""How long intervals run, and how long two kinds of them run at the same time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.bench.intervals import exposed, overlap, total, union


def test_intervals_that_touch_are_one() -> None:
    assert union([(5, 6), (0, 2), (1, 3), (3, 4), (7, 7)]) == [(0, 4), (5, 6)]
    assert total([(5, 6), (0, 2), (1, 3)]) == 4


def test_overlap_is_what_both_kinds_cover() -> None:
    communication, computation = [(2.0, 6.0), (8.0, 10.0)], [(0.0, 3.0), (5.0, 9.0)]
    assert overlap(communication, computation) == 3
    assert exposed(communication, computation) == 3


CELLS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda ends: (min(ends), max(ends))), max_size=8)


@given(first=CELLS, second=CELLS)
def test_it_agrees_with_counting_cells(first: list[tuple[int, int]], second: list[tuple[int, int]]) -> None:
    def cells(intervals: list[tuple[int, int]]) -> set[int]:
        return {cell for start, end in intervals for cell in range(start, end)}

    assert total(first) == len(cells(first))
    assert overlap(first, second) == len(cells(first) & cells(second))
    assert exposed(first, second) == pytest.approx(len(cells(first) - cells(second)))
