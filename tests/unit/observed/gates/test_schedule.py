"""Schedules are plain data: they compare, print as Python, and order operations by their numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp import UsageError
from pytest_ddp.observed import Delay, HoldUntilBackward, InOrder, Schedule, Shuffled

numbers = st.integers(1, 8)
schedules = st.one_of(
    st.builds(HoldUntilBackward),
    st.builds(Schedule),
    st.builds(Delay, numbers),
    st.builds(Shuffled, st.integers()),
    st.builds(InOrder, st.lists(numbers, unique=True).map(tuple)),
)


@given(schedules)
def test_a_schedule_prints_as_the_python_that_makes_it(schedule):
    assert eval(repr(schedule)) == schedule  # noqa: S307  our own text


@given(schedules, st.sets(numbers), st.sets(numbers), numbers)
def test_the_order_of_two_operations_does_not_depend_on_others(schedule, some, more, number):
    few = schedule.ahead_of(number, some)
    many = schedule.ahead_of(number, some | more)
    assert few == [other for other in many if other in some]
    assert number not in many


@given(schedules, st.sets(numbers, min_size=2, max_size=2))
def test_one_of_two_operations_is_ahead_unless_the_schedule_holds(schedule, pair):
    one, other = pair
    ahead = [schedule.ahead_of(one, pair), schedule.ahead_of(other, pair)]
    expected = [[], []] if schedule.holds_in_backward else [[], [one]] if ahead[1] else [[other], []]
    assert ahead == expected


def test_what_each_schedule_does():
    flight = range(1, 5)
    assert Schedule().ahead_of(3, flight) == [1, 2]
    assert HoldUntilBackward().ahead_of(3, flight) == []
    assert InOrder((4, 3)).ahead_of(3, flight) == [4]
    assert InOrder((4, 3)).ahead_of(2, flight) == [4, 3, 1]
    assert Delay(1).ahead_of(1, flight) == [2, 3, 4]
    assert Delay(1).ahead_of(3, flight) == [2]
    assert [HoldUntilBackward().holds_in_backward, Delay(1).holds_in_backward] == [True, False]


def test_seeds_give_orders_of_their_own():
    assert Shuffled(1) == Shuffled(1)
    orders = {tuple(sorted(range(1, 6), key=Shuffled(seed).place)) for seed in range(50)}
    assert len(orders) > 20


@pytest.mark.parametrize("order", [(1, 1), (0, 1), (-1,)])
def test_an_order_names_each_operation_once(order):
    with pytest.raises(UsageError, match=r"names operations by their numbers from 1, each once; got InOrder\(order="):
        InOrder(order)


def test_operations_are_numbered_from_one():
    with pytest.raises(UsageError, match=r"operations are numbered from 1; got Delay\(number=0\)"):
        Delay(0)
