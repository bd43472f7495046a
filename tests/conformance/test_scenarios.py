"""Scenarios are plain data: they print as Python, travel as JSON, and are the same afterwards."""

import gc
import json
import weakref
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import conformance.scenarios.layers
import conformance.scenarios.scenario
from conformance.components.registry import COMPONENTS
from conformance.oracle import training
from conformance.oracle.remembered import right_training
from conformance.oracle.training import train
from conformance.scenarios.drawn import drawn_from_json
from conformance.scenarios.layers import Linear, Magnitude
from conformance.scenarios.model_spec import ModelSpec
from conformance.scenarios.scenario import Scenario
from conformance.strategies import Bounds
from conformance.strategies.building_blocks import parts
from conformance.workload.models import Perceptron
from conformance.workload.numbers import data_seed, draw_inputs
from conformance.workload.schedule import OPTIMIZERS

LOOP_CHECKS = {name: one.checks for name, one in COMPONENTS.items() if one.contract.kind == "part"}

DRAWERS = {
    part
    for name in COMPONENTS.keys() - LOOP_CHECKS.keys()
    for check in COMPONENTS[name].checks
    for part in parts(check.scenarios)
}
SCENARIOS = st.one_of(*(draw(Bounds(4, bucketed=True)) for draw in sorted(DRAWERS, key=lambda draw: draw.__qualname__)))
quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@quick
@given(SCENARIOS)
def test_a_scenario_prints_as_python_that_makes_it_again(scenario):
    names = vars(conformance.scenarios.layers) | vars(conformance.scenarios.scenario)
    assert eval(repr(scenario), names) == scenario  # noqa: S307  our own text


@quick
@given(SCENARIOS)
def test_a_scenario_survives_json(scenario):
    assert drawn_from_json(json.loads(scenario.text)) == scenario


@quick
@given(SCENARIOS)
def test_every_scenario_can_be_trained_in_one_process(scenario):
    trained = train(scenario, draw_inputs(scenario, data_seed("secret", scenario)))
    assert len(trained.parameters) == len(trained.gradients) == scenario.steps


def test_the_limit_of_a_complex_weight_counts_its_imaginary_part():
    scenario = Scenario(model=ModelSpec(2, (Linear(2), Magnitude(), Linear(1)))).in_float32
    train(scenario, draw_inputs(scenario, seed=1))  # without a warning of torch, which would fail here


@quick
@given(SCENARIOS)
def test_what_is_right_is_computed_once_for_all_sizes_of_buckets(scenario):
    whole, split = (replace(scenario, bucket_size_mb=size) for size in (None, 0.5))
    assert right_training(split, seed=1) is right_training(whole, seed=1)
    anew = train(split, draw_inputs(split, seed=1))
    for known, computed in zip(right_training(whole, seed=1).parameters, anew.parameters, strict=True):
        torch.testing.assert_close(known, computed, rtol=0, atol=0, equal_nan=True)


@quick
@given(SCENARIOS)
def test_worlds_stay_within_their_bound(scenario):
    assert 1 <= scenario.world_size <= (64 if scenario.simulated else 4)


def test_no_optimizer_of_torchs_is_left_out_that_computes_element_by_element():
    others = {"LBFGS", "Adafactor", "Muon", "SparseAdam"}
    known = {name for name, found in vars(torch.optim).items() if isinstance(found, type) and name != "Optimizer"}
    assert set(OPTIMIZERS) == known - others


def test_numbers_depend_on_the_secret_and_on_nothing_else():
    scenario = Scenario()
    again = [draw_inputs(scenario, data_seed(secret, scenario)) for secret in ("a", "a", "b")]
    weights = [{name: tensor.tolist() for name, tensor in inputs[0].weights.items()} for inputs in again]
    assert weights[0] == weights[1] != weights[2]


def test_ranks_start_with_different_weights_and_batches():
    scenario = Scenario()
    first, second = draw_inputs(scenario, data_seed("secret", scenario))
    assert all(not first.weights[name].equal(second.weights[name]) for name in first.weights)
    assert not first.batches[0][0].equal(second.batches[0][0])


@quick
@given(SCENARIOS)
def test_a_training_in_one_process_frees_its_models_at_once(scenario):
    made = weakref.WeakSet[Perceptron]()

    def make(spec: ModelSpec) -> Perceptron:
        made.add(model := Perceptron(spec))
        return model

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training, "Perceptron", make)
        gc.disable()
        try:
            assert train(scenario, draw_inputs(scenario, 1)).parameters
            assert not made
        finally:
            gc.enable()


@pytest.mark.parametrize("plain", [{}, {"model": 3}, {**Scenario().to_json(), "schedule": [{"class": "Explode"}]}])
def test_what_is_no_scenario_is_refused(plain):
    with pytest.raises((KeyError, TypeError)):
        drawn_from_json(plain)
