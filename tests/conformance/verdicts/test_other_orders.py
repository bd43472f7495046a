"""A wrapper that lays weights out anew, or a batch in another order, sums in another order: never near the limit."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from conformance.oracle.training import Trajectory, train
from conformance.scenarios.scenario import Scenario
from conformance.strategies import Bounds, wrapper
from conformance.workload.models import Perceptron, call, fill, loss_of
from conformance.workload.numbers import Batch, Tensors, data_seed, draw_inputs

NEAR = 0.5


def in_another_order(scenario: Scenario, expected: Trajectory, step: int, rank: int, batch: Batch) -> Tensors:
    """The gradients of a rank's batch, with every weight stored transposed and the samples reversed."""
    model = Perceptron(scenario.model, rank)
    fill(model, expected.starts[step], {})
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in expected.gradients[step])
        parameter.data = parameter.data.mT.contiguous().mT if parameter.dim() == 2 else parameter.data
    x, y = (part.flip(0) for part in batch)
    torch.autograd.backward(loss_of(call(scenario, model, x), y))
    return {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "draw",
    [wrapper.in_float32, wrapper.in_bfloat16, wrapper.in_mixed_dtypes, wrapper.on_one_rank],
    ids=["float32", "bfloat16", "mixed_dtypes", "one_rank"],
)
def test_another_order_of_summation_stays_far_from_the_limit(draw):
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(draw(Bounds(4)))
    def holds(scenario):
        inputs = draw_inputs(scenario, data_seed("secret", scenario))
        expected = train(scenario, inputs)
        for step in range(scenario.steps):
            others = [in_another_order(scenario, expected, step, r, own.batches[step]) for r, own in enumerate(inputs)]
            for name, limit in expected.gradient_limits[step].items():
                mean = torch.stack([gradients[name] for gradients in others]).mean(0)
                assert float((mean - expected.gradients[step][name]).abs().max()) <= NEAR * limit

    holds()
