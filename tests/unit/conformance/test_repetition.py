"""A check runs those of its scenarios that show something which no other one shows."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from conformance.components.overhead_model.case import OverheadCase
from conformance.judging.repetition import without_repetition
from conformance.scenarios.scenario import OptimizerSpec, Scenario

PLAIN = Scenario(world_size=2)


def test_what_has_nothing_of_its_own_is_left_out():
    others = [replace(PLAIN, steps=2), replace(PLAIN, seed=5)]
    assert without_repetition([PLAIN, *others]) == (PLAIN, others[0])


def test_the_same_in_a_world_of_another_size_stays():
    scenarios = (PLAIN, replace(PLAIN, world_size=3))
    assert without_repetition(scenarios) == scenarios


def test_one_that_shows_what_two_others_show_takes_their_place():
    several = [replace(PLAIN, steps=2), replace(PLAIN, uneven=True), replace(PLAIN, steps=2, uneven=True)]
    assert without_repetition([PLAIN, *several]) == (PLAIN, several[2])


def test_learning_rates_are_alike_and_so_are_bucket_sizes_which_some_wrappers_do_not_take():
    rates = [replace(PLAIN, optimizer=OptimizerSpec("SGD", {"lr": rate})) for rate in (0.1, 0.2)]
    assert without_repetition(rates) == (rates[0],)
    sizes = [replace(PLAIN, bucket_size_mb=size) for size in (0.1, 25.0, None)]
    assert without_repetition(sizes) == (sizes[0],)


def test_of_scenarios_in_which_memory_is_weighed_a_few_in_all_worlds_are_enough():
    drawn = [Scenario(world_size=size, steps=steps, weighed=True) for size in (2, 3, 4) for steps in (1, 2, 3)]
    kept = without_repetition(drawn)
    assert len(kept) == 4
    assert {one.world_size for one in kept} == {2, 3, 4}


def test_cases_of_other_components_all_stay():
    cases = (OverheadCase(), OverheadCase())
    assert without_repetition(cases) == cases


@given(st.lists(st.builds(Scenario, world_size=st.integers(2, 3), steps=st.integers(1, 3), uneven=st.booleans())))
def test_nothing_that_is_shown_is_lost(drawn):
    kept = without_repetition(drawn)
    for name in ("steps", "uneven"):
        assert {(one.world_size, getattr(one, name)) for one in kept} == {
            (one.world_size, getattr(one, name)) for one in drawn
        }
