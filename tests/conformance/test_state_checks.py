"""State that cannot be found is told as such, not as state that is missing."""

import pytest
import torch

from conformance.checks.check import Violation
from conformance.checks.trial import Trial
from conformance.components.sharded_optimizer.assertions import state_is_balanced, state_is_sharded
from conformance.protocol.messages import Observation
from conformance.scenarios.layers import Linear
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import OptimizerSpec, Scenario

SCENARIO = Scenario(model=ModelSpec(layers=(Linear(1),)), optimizer=OptimizerSpec("AdamW", {"lr": 0.1}))


def trial(*held: int | None) -> Trial:
    observations = tuple(Observation({"x": torch.zeros(1)}, state_bytes=one) for one in held)
    return Trial(SCENARIO, 1, observations)


@pytest.mark.parametrize("check", [state_is_sharded, state_is_balanced])
@pytest.mark.parametrize(
    ("held", "where"),
    [((16, None), "On rank 1 no torch optimizer"), ((0, 0), "On no rank any optimizer state")],
    ids=["no optimizer", "no state"],
)
def test_what_cannot_be_found_is_told_with_where_to_keep_it(check, held, where):
    with pytest.raises(Violation) as told:
        check(trial(*held))
    assert told.value.message == (
        f"{where} could be found in what get_sharded_optimizer returned, so its state cannot be measured."
    )
    assert told.value.advice == "Keep the inner optimizer in an attribute of what get_sharded_optimizer returns."


WIDE = Scenario(model=ModelSpec(64, (Linear(64), Linear(64))), optimizer=SCENARIO.optimizer, weighed=True)


def weighed(*shares: float | None) -> Trial:
    """Two ranks that show half of the state each, and whose processes need these shares of it."""
    full = sum(Trial(WIDE, 1, ()).expected.state_bytes.values())
    process_bytes = [None if share is None else int(share * full) for share in shares]
    return Trial(
        WIDE,
        1,
        tuple(
            Observation({"x": torch.zeros(1)}, state_bytes=full // 2, process_bytes=weight) for weight in process_bytes
        ),
    )


def test_state_that_no_object_shows_weighs_in_the_memory_of_the_processes():
    state_is_sharded(weighed(0.5, 0.6))
    state_is_sharded(weighed(None, None))  # it cannot be weighed here
    with pytest.raises(Violation) as hidden:
        state_is_sharded(weighed(1.0, 1.0))
    assert hidden.value.message == (
        "The processes of the ranks need 133120, 133120 bytes more for an optimizer with this state than for one "
        "without any, 266240 in all; one unsharded optimizer has 133120."
    )
    assert "not in a global table, a closure or a class either" in hidden.value.advice
