"""What a gate does to single operations: each case runs on two ranks, and checks what it sees there."""

import gate_cases
import pytest

from pytest_ddp.failure import RankFailure, failures
from pytest_ddp.world import World

WORLD = World(2, observe=True)


@pytest.mark.parametrize("name", gate_cases.CASES)
def test_case(ranks, name):
    outcomes = ranks.run(WORLD, "gate_cases:run", name.encode(), timeout=60)
    assert not failures(outcomes), str(RankFailure(outcomes, WORLD))
