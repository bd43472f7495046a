"""The accounting on paper: bytes per parameter, what each rank keeps, and what a step sends."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.bench.accounting import STRATEGIES, StateBytes, exact, paper, part, sent, volume

SHAPES = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple), min_size=1, max_size=8)
WORLD_SIZES = st.integers(1, 6)


def bytes_per_parameter(strategy: str, world_size: int) -> tuple[float, float, float]:
    found = paper(strategy, 1000, world_size)
    return found.parameters / 1000, found.gradients / 1000, found.optimizer / 1000


def test_bytes_per_parameter_are_those_of_the_paper() -> None:
    assert bytes_per_parameter("ddp", 4) == (4, 4, 8)
    assert bytes_per_parameter("zero1", 4) == (4, 4, 2)
    assert bytes_per_parameter("fsdp", 4) == (1, 1, 2)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_on_one_rank_nothing_is_saved(strategy: str) -> None:
    assert paper(strategy, 10, 1) == StateBytes(40, 40, 80)
    assert exact(strategy, [(2, 5)], 1, 0) == StateBytes(40, 40, 80 + 4)


def test_an_example_counted_by_hand() -> None:
    shapes = [(4, 3), (3,), (3, 2)]  # 21 elements
    assert exact("ddp", shapes, 2, 0) == StateBytes(84, 84, 168 + 3 * 4)
    assert exact("zero1", shapes, 2, 0) == StateBytes(84, 84, 8 * 12 + 4)  # the largest parameter
    assert exact("zero1", shapes, 2, 1) == StateBytes(84, 84, 8 * 9 + 8)  # both others
    assert exact("fsdp", shapes, 2, 0) == StateBytes(4 * 12, 4 * 12, 8 * 12 + 3 * 4)  # 6 + 3 + 3 elements


@given(shapes=SHAPES, world_size=WORLD_SIZES)
def test_the_ranks_together_keep_the_whole_state(shapes: list[tuple[int, ...]], world_size: int) -> None:
    whole = sum(math.prod(shape) for shape in shapes)
    kept = [exact("zero1", shapes, world_size, rank) for rank in range(world_size)]
    assert sum(each.optimizer for each in kept) == 8 * whole + 4 * len(shapes)
    vectors = sum(math.prod(shape) for shape in shapes if len(shape) == 1)
    kept = [exact("fsdp", shapes, world_size, rank) for rank in range(world_size)]
    assert sum(each.parameters for each in kept) == 4 * (whole + (world_size - 1) * vectors)


@given(size=st.integers(0, 100), world_size=WORLD_SIZES)
def test_the_parts_of_a_sharded_parameter_make_it_whole(size: int, world_size: int) -> None:
    parts = [part(size, world_size, rank) for rank in range(world_size)]
    assert sum(parts) == size
    assert parts == sorted(parts, reverse=True)


def test_a_step_sends_the_bytes_of_the_formulas() -> None:
    assert volume("ddp", 10) == {"all_reduce": 40}
    assert volume("zero1", 10) == {"all_reduce": 40, "broadcast": 40}
    assert volume("zero1", 10, as_in_paper=True) == {"reduce_scatter": 40, "all_gather": 40}
    assert volume("fsdp", 10) == {"all_gather": 80, "reduce_scatter": 40}


def test_an_all_reduce_sends_as_much_as_a_reduce_scatter_and_an_all_gather() -> None:
    assert sent("all_reduce", 100, 4) == sent("reduce_scatter", 100, 4) + sent("all_gather", 100, 4) == 150
    assert sent("broadcast", 100, 4) == 75
    assert sent("all_reduce", 100, 1) == sent("broadcast", 100, 1) == 0


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    for refused in (lambda: paper("zero9", 1, 1), lambda: exact("zero9", [(1,)], 1, 0), lambda: volume("zero9", 1)):
        with pytest.raises(ValueError, match="there is no strategy 'zero9'; there are ddp, zero1, fsdp"):
            refused()
    with pytest.raises(ValueError, match="no formula for the operation 'gossip'; there are formulas for all_reduce"):
        sent("gossip", 1, 2)
