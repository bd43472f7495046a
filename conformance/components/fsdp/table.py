"""Which checks fully sharded data parallelism is held to, in the order in which they run."""

from conformance.checks import multi_node
from conformance.checks.check import Check
from conformance.components.fsdp import checks, memory, precision
from conformance.components.fsdp import scenarios as networks
from conformance.strategies import loop
from conformance.strategies.building_blocks import having

_WAITED = ("shards_are_waited_for",)
_GATHERED = ("gathers_whole_parameters",)
_TRAINED = ("sharded_training_equals_one_process",)
_SHARDED = ("parameters_are_sharded",)
_HALF = networks.sharded_trainings(half=True)
CHECKS = (
    Check(checks.shards_are_waited_for, loop.gated(networks.sharded_trainings())),
    Check(checks.gathers_whole_parameters, networks.sharded_trainings(), requires=_WAITED),
    Check(checks.sharded_training_equals_one_process, networks.sharded_trainings(), points=2, requires=_GATHERED),
    Check(checks.parts_of_any_shape, networks.sharded_trainings(uneven=True), requires=_TRAINED),
    Check(memory.parameters_are_sharded, networks.sharded_trainings(wide=True), points=2, requires=_TRAINED),
    Check(memory.nothing_whole_is_kept, networks.weighed_trainings, requires=_SHARDED),
    Check(memory.weights_are_freed, networks.sharded_trainings(wide=True, depths=(5, 6)), requires=_SHARDED),
    Check(
        memory.weights_are_freed_in_backward,
        networks.sharded_trainings(wide=True, depths=(5, 6)),
        requires=("weights_are_freed",),
    ),
    Check(memory.gathers_layer_by_layer, networks.weighed_trainings, requires=("weights_are_freed",)),
    Check(memory.gradients_are_sharded, networks.sharded_trainings(wide=True), requires=_TRAINED),
    Check(memory.optimizer_state_is_sharded, networks.sharded_trainings(wide=True), requires=_TRAINED),
    Check(precision.keeps_full_precision, _HALF, requires=_TRAINED),
    Check(precision.computes_in_the_dtype, _HALF, requires=("keeps_full_precision",)),
    Check(checks.forward_keywords, networks.sharded_trainings(keyword=True), requires=_TRAINED),
    Check(
        memory.memory_of_weights_is_given_back,
        networks.weighed_trainings,
        "extended",
        requires=("gathers_layer_by_layer",),
    ),
    Check(
        memory.memory_is_given_back_in_evaluation_mode,
        having(networks.weighed_trainings, in_evaluation=True),
        "extended",
        requires=("memory_of_weights_is_given_back",),
    ),
    Check(memory.memory_does_not_grow, networks.lasting_trainings, "extended", requires=_TRAINED),
    Check(checks.starts_from_rank_0, networks.sharded_trainings(alike=False), "extended", requires=_GATHERED),
    Check(checks.trains_in_float64, networks.sharded_trainings(dtype="float64"), "extended", requires=_TRAINED),
    Check(checks.biases, networks.sharded_trainings(biased=True), "extended", requires=_TRAINED),
    Check(checks.evaluation_between_steps, networks.sharded_trainings(evaluates=True), "extended", requires=_TRAINED),
    Check(checks.accumulates_gradients, networks.sharded_trainings(micro_batches=2), "extended", requires=_TRAINED),
    Check(
        checks.frozen_parameters_stay,
        networks.sharded_trainings(frozen=True, biased=True),
        "extended",
        requires=_TRAINED,
    ),
    Check(checks.buffers_reach_forward, networks.sharded_trainings(buffered=True), "extended", requires=_TRAINED),
    Check(checks.tied_parameters, networks.tied_trainings, "extended", requires=_TRAINED),
    Check(checks.scalar_parameter, networks.sharded_trainings(scalar=True), "extended", requires=_TRAINED),
    Check(checks.layer_used_twice, networks.trainings_with_a_layer_used_twice, "extended", requires=_TRAINED),
    Check(
        checks.several_forwards_one_backward,
        networks.sharded_trainings(micro_batches=2, joined=True),
        "extended",
        requires=("accumulates_gradients",),
    ),
    Check(checks.cleared_after_forward, networks.sharded_trainings(clears_late=True), "extended", requires=_TRAINED),
    Check(
        checks.non_contiguous_parameter,
        networks.sharded_trainings(transposed=True, alike=False),
        "extended",
        requires=("starts_from_rank_0", *_TRAINED),
    ),
    Check(
        checks.trains_in_evaluation_mode, networks.sharded_trainings(in_evaluation=True), "extended", requires=_TRAINED
    ),
    Check(
        multi_node.shards_on_two_machines,
        having(networks.sharded_trainings(), two_machines=True),
        "extended",
        requires=_TRAINED,
    ),
    Check(checks.unused_everywhere, networks.sharded_trainings(unused=True), "extended", requires=_TRAINED),
    Check(
        memory.uneven_parameters_are_sharded,
        networks.sharded_trainings(wide=True, uneven=True),
        "extended",
        requires=(*_SHARDED, "parts_of_any_shape"),
    ),
    Check(
        memory.frozen_parameters_are_sharded,
        networks.sharded_trainings(wide=True, frozen=True),
        "extended",
        requires=(*_SHARDED, "frozen_parameters_stay"),
    ),
    Check(
        checks.frozen_parameters_from_rank_0,
        networks.sharded_trainings(alike=False, frozen=True),
        "extended",
        requires=("starts_from_rank_0", "frozen_parameters_stay"),
    ),
)
