"""A training on an observed group gives results that are equal to the last bit."""

import functools
import pickle

import pytest
from observed_training import PROGRAMS, STEPS

from pytest_ddp.observed import BackwardBegan, BackwardReturned, GradientReady
from pytest_ddp.outcomes.failure import RankFailure, failures
from pytest_ddp.planning.world import World


@pytest.fixture(scope="module")
def run(ranks):
    """Run a program; return the result, the entries and the events of each rank."""

    @functools.cache
    def run(name: str, *, observe: bool):
        world = World(2, observe=observe)
        outcomes = ranks.run(world, "observed_training:run", name.encode(), timeout=120)
        assert not failures(outcomes), str(RankFailure(outcomes, world))
        return [pickle.loads(outcome.body) for outcome in outcomes]  # noqa: S301  from our own target

    return run


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_equal(run, name):
    plain, observed = ([result for result, _, _ in run(name, observe=observe)] for observe in (False, True))
    assert observed == plain


@pytest.mark.parametrize("name", PROGRAMS)
def test_operations_are_recorded_and_complete(run, name):
    for _, entries, _ in run(name, observe=True):
        assert entries
        left = [entry for entry in entries if not entry.completed]
        # torch's Join never waits for its own all_reduce.
        assert all(name == "ddp_join" and entry.shapes == ((1,),) for entry in left), left


def test_torch_ddp_launches_inside_backward_with_the_gradients_of_the_bucket_ready(run):
    for _, entries, _ in run("ddp_small_buckets_as_views", observe=True):
        reduced = [entry for entry in entries if entry.op == "all_reduce"]
        steps = [[entry for entry in reduced if entry.launched.backward == step + 1] for step in range(STEPS)]
        assert sum(map(len, steps)) == len(reduced)
        for buckets in steps[1:]:  # the first step uses provisional buckets
            ready = [entry.launched.ready for entry in buckets]
            assert len(ready) > 2
            assert ready == sorted(ready)
            assert ready[0] < ready[-1] == buckets[0].launched.expected
            ends = {(entry.waited.backward, entry.waited.ready) for entry in buckets}
            assert ends == {(buckets[0].launched.backward, buckets[0].launched.expected)}


def test_backward_passes_and_gradients_are_events_in_order(run):
    for _, _, events in run("ddp", observe=True):
        found = [event for event in events if isinstance(event, BackwardBegan | GradientReady | BackwardReturned)]
        assert [event.time for event in events] == sorted(event.time for event in events)
        for step in range(1, STEPS + 1):
            began, *ready, returned = [event for event in found if event.backward == step]
            assert isinstance(began, BackwardBegan)
            assert isinstance(returned, BackwardReturned)
            assert len(ready) == began.expected == 8


def test_nested_backward_passes_are_distinguished(run):
    for _, _, events in run("reentrant_checkpoint", observe=True):
        backward = [(type(event).__name__, event.backward) for event in events if hasattr(event, "backward")]
        assert backward[:2] == [("BackwardBegan", 1), ("BackwardBegan", 2)]
        assert [kind for kind, number in backward if number == 2].count("GradientReady") == 5  # the input too
        assert backward[7:10] == [("BackwardReturned", 2), ("GradientReady", 1), ("BackwardReturned", 1)]


@pytest.mark.parametrize(
    "name", ["ddp_allreduce_hook", "ddp_fp16_hook", "ddp_builtin_fp16_hook", "ddp_hook_of_its_own"]
)
def test_the_wait_of_ddp_is_recorded_for_every_hook(run, name):
    for _, entries, _ in run(name, observe=True):
        reduced = [entry for entry in entries if entry.launched.backward]
        assert reduced
        assert all(entry.waited and entry.waited.backward == entry.launched.backward for entry in reduced)
