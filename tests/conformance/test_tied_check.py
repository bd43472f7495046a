"""Two layers that share a weight: a wrapper that gives each its own is told so, whatever else it registers."""

import pytest
import torch

from conformance.checks.check import Violation
from conformance.checks.training import trains
from conformance.checks.trial import Trial
from conformance.protocol.messages import Observation
from conformance.scenarios.layers import Linear
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import Scenario


def test_a_weight_of_its_own_for_each_layer_is_told_by_name():
    scenario = Scenario(model=ModelSpec(layers=(Linear(1), Linear(1)), tied=(0, 1)), world_size=1)
    seen = Observation({"x": torch.zeros(1)}, extra_parameters=["flats.0", "layers.1.weight"])
    with pytest.raises(Violation) as told:
        trains(Trial(scenario, 0, (seen,)))
    assert told.value.message == (
        "On rank 0 the wrapped model has a parameter that the model does not have: `layers.1.weight`. "
        "Two layers shared a weight; wrapping gave each its own."
    )
    assert "do not replace `module.weight`" in told.value.advice
