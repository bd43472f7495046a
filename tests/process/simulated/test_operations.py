"""Every operation gives the same result on simulated ranks as on real ones."""

import pickle

import pytest
from observed_operations import OPERATIONS, tried
from simulated_training import TRAININGS

from pytest_ddp.outcomes.failure import failures
from pytest_ddp.planning.world import World
from pytest_ddp.simulated import simulate

CALLS = {**OPERATIONS, **TRAININGS}
NAMED_BY_BACKEND = {"split_group"}  # returns the name of its backend
REFUSED = "RuntimeError:"  # a result begins so where gloo, of some versions of torch, does not have the operation


@pytest.fixture(scope="module")
def real(ranks):
    """The results of each call on two real ranks, which use gloo."""
    found = []
    for target in ("observed_operations:run_all", "simulated_training:run_all"):
        outcomes = ranks.run(World(2), target, timeout=120)
        assert not failures(outcomes), failures(outcomes)
        found.append([pickle.loads(outcome.body) for outcome in outcomes])  # noqa: S301  from our own target
    return [{**operations, **trainings} for operations, trainings in zip(*found, strict=True)]


@pytest.mark.parametrize("name", CALLS)
def test_results_are_equal_to_the_last_bit(real, name):
    run = simulate(lambda: tried(CALLS[name]), 2)
    if "only implemented for GLOO" in str(run.errors):
        pytest.skip("this torch asks for the backend's name")
    run.raise_problem()
    expected = [rank[name][0] for rank in real]
    if refused(expected) and not refused(run.results):
        pytest.skip("gloo of this torch does not have it; simulated ranks do")
    if name in NAMED_BY_BACKEND and not refused(expected):
        expected = [[tensor, "sim", size] for tensor, _, size in expected]
    assert run.results == expected


def refused(results):
    return all(str(result).startswith(REFUSED) for result in results)


def test_no_training_is_trivial(real):
    for name in set(TRAININGS) - {"averages_of_integers"}:
        assert not isinstance(real[0][name][0], str), real[0][name]
