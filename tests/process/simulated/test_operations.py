"""Every operation gives the same result on simulated ranks as on real ones."""

import pickle

import pytest
import torch
from observed_operations import OPERATIONS, tried
from simulated_training import TRAININGS

from pytest_ddp.outcomes.failure import failures
from pytest_ddp.planning.world import World
from pytest_ddp.simulated import simulate

CALLS = {**OPERATIONS, **TRAININGS}
NAMED_BY_BACKEND = {"split_group"}  # returns the name of its backend
OLD = torch.__version__ < (2, 12)
# The old gloo has no `all_to_all`; the old `monitored_barrier` takes gloo alone. `split_group` refuses both backends.
NOT_IN_BOTH = {"all_to_all", "monitored_barrier"} if OLD else set()


@pytest.fixture(scope="module")
def real(ranks):
    """The results of each call on two real ranks, which use gloo."""
    found = []
    for target in ("observed_operations:run_all", "simulated_training:run_all"):
        outcomes = ranks.run(World(2), target, timeout=120)
        assert not failures(outcomes), failures(outcomes)
        found.append([pickle.loads(outcome.body) for outcome in outcomes])  # noqa: S301  from our own target
    return [{**operations, **trainings} for operations, trainings in zip(*found, strict=True)]


@pytest.mark.parametrize("name", [name for name in CALLS if name not in NOT_IN_BOTH])
def test_results_are_equal_to_the_last_bit(real, name):
    run = simulate(lambda: tried(CALLS[name]), 2)
    run.raise_problem()
    expected = [rank[name][0] for rank in real]
    if name in NAMED_BY_BACKEND and not OLD:
        expected = [[tensor, "sim", size] for tensor, _, size in expected]
    assert run.results == expected


def test_no_training_is_trivial(real):
    for name in set(TRAININGS) - {"averages_of_integers"}:
        assert not isinstance(real[0][name][0], str), real[0][name]
