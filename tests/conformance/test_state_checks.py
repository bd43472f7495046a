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
