"""Which tensors share a bucket, and which rank owns which parameter: properties for items of any size."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from reference.partition import assign_to_least_loaded, fill_buckets

ITEMS = st.lists(st.tuples(st.integers(0, 100), st.sampled_from(["float32", "float64"])), max_size=30)
CAPACITIES = st.none() | st.floats(0.5, 300)
SIZES = st.lists(st.integers(0, 100), max_size=30)
WORLD_SIZES = st.integers(1, 8)


def buckets_of(items: list[tuple[int, str]], capacity: float | None) -> list[list[int]]:
    return fill_buckets([size for size, _ in items], [kind for _, kind in items], capacity)


@given(ITEMS, CAPACITIES)
def test_every_item_is_in_exactly_one_bucket(items: list[tuple[int, str]], capacity: float | None) -> None:
    assert sorted(index for bucket in buckets_of(items, capacity) for index in bucket) == list(range(len(items)))


@given(ITEMS, CAPACITIES)
def test_a_bucket_holds_one_kind_in_order(items: list[tuple[int, str]], capacity: float | None) -> None:
    for bucket in buckets_of(items, capacity):
        assert len({items[index][1] for index in bucket}) == 1
        assert bucket == sorted(bucket)


@given(ITEMS, st.floats(0.5, 300))
def test_only_a_single_item_exceeds_the_capacity(items: list[tuple[int, str]], capacity: float) -> None:
    for bucket in buckets_of(items, capacity):
        assert len(bucket) == 1 or sum(items[index][0] for index in bucket) <= capacity


@given(ITEMS, st.floats(0.5, 300))
def test_the_first_item_of_a_bucket_did_not_fit_the_one_before(items: list[tuple[int, str]], capacity: float) -> None:
    for kind in ("float32", "float64"):
        buckets = [bucket for bucket in buckets_of(items, capacity) if items[bucket[0]][1] == kind]
        for before, bucket in pairwise(buckets):
            assert sum(items[index][0] for index in before) + items[bucket[0]][0] > capacity


@given(ITEMS)
def test_without_a_capacity_each_kind_has_one_bucket(items: list[tuple[int, str]]) -> None:
    assert len(buckets_of(items, None)) == len({kind for _, kind in items})


@given(ITEMS, CAPACITIES)
def test_buckets_come_in_the_order_in_which_they_become_full(
    items: list[tuple[int, str]], capacity: float | None
) -> None:
    last_items = [bucket[-1] for bucket in buckets_of(items, capacity)]
    assert last_items == sorted(last_items)


def test_kinds_that_alternate_still_fill_their_buckets() -> None:
    assert fill_buckets([4, 2, 4, 2, 4], ["a", "b", "a", "b", "a"], 8) == [[0, 2], [1, 3], [4]]


@given(SIZES, WORLD_SIZES)
def test_loads_are_the_sums_of_the_assigned_sizes(sizes: list[int], world_size: int) -> None:
    loads = [0] * world_size
    owners = assign_to_least_loaded(sizes, loads)
    assert loads == [
        sum(size for size, owner in zip(sizes, owners, strict=True) if owner == rank) for rank in range(world_size)
    ]


@given(SIZES.filter(len), WORLD_SIZES)
def test_the_largest_load_stays_within_grahams_bound(sizes: list[int], world_size: int) -> None:
    loads = [0] * world_size
    assign_to_least_loaded(sizes, loads)
    mean, largest = sum(sizes) / world_size, max(sizes)
    assert max(loads) <= mean + (1 - 1 / world_size) * largest + 1e-9


@given(SIZES, WORLD_SIZES)
def test_no_load_is_larger_than_another_by_more_than_the_largest_item(sizes: list[int], world_size: int) -> None:
    loads = [0] * world_size
    assign_to_least_loaded(sizes, loads)
    assert max(loads) - min(loads) <= max(sizes, default=0)


@given(SIZES, SIZES, WORLD_SIZES)
def test_later_items_are_added_to_the_earlier_loads(first: list[int], later: list[int], world_size: int) -> None:
    loads = [0] * world_size
    assign_to_least_loaded(first, loads)
    assign_to_least_loaded(later, loads)
    assert sum(loads) == sum(first) + sum(later)
    assert max(loads) - min(loads) <= max(first + later, default=0)


def test_ties_go_to_the_lower_item_and_rank() -> None:
    assert assign_to_least_loaded([5, 5, 5, 5], [0, 0, 0]) == [0, 1, 2, 0]


def test_the_largest_item_is_placed_first() -> None:
    assert assign_to_least_loaded([1, 1, 2], [0, 0]) == [1, 1, 0]


@given(ITEMS, st.floats(0.5, 300), st.floats(0.5, 300))
def test_only_the_first_bucket_of_a_kind_has_another_capacity(
    items: list[tuple[int, str]], capacity: float, first: float
) -> None:
    sizes, kinds = [size for size, _ in items], [kind for _, kind in items]
    buckets = fill_buckets(sizes, kinds, capacity, first)
    for kind in set(kinds):
        own = sorted(bucket for bucket in buckets if kinds[bucket[0]] == kind)
        begins_rest = own[1][0] if len(own) > 1 else len(items)
        rest = [index for index in range(begins_rest, len(items)) if kinds[index] == kind]
        assert len(own[0]) == 1 or sum(sizes[index] for index in own[0]) <= first
        assert not rest or sum(sizes[index] for index in [*own[0], rest[0]]) > first
        again = fill_buckets([sizes[i] for i in rest], [kind] * len(rest), capacity)
        assert own[1:] == [[rest[k] for k in bucket] for bucket in again]
