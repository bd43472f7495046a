"""Which checks fully sharded data parallelism is held to, in the order in which they run."""

from conformance.checks.check import Check, described
from conformance.checks.words import TWO_MACHINES
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
    described(checks.shards_are_waited_for, loop.gated(networks.sharded_trainings())),
    described(checks.gathers_whole_parameters, networks.sharded_trainings(), requires=_WAITED),
    described(checks.sharded_training_equals_one_process, networks.sharded_trainings(), points=2, requires=_GATHERED),
    described(checks.parts_of_any_shape, networks.sharded_trainings(uneven=True), requires=_TRAINED),
    described(memory.parameters_are_sharded, networks.sharded_trainings(wide=True), points=2, requires=_TRAINED),
    described(memory.nothing_whole_is_kept, networks.weighed_trainings, requires=_SHARDED),
    described(memory.weights_are_freed, networks.sharded_trainings(wide=True, depths=(5, 6)), requires=_SHARDED),
    described(
        memory.weights_are_freed_in_backward,
        networks.sharded_trainings(wide=True, depths=(5, 6)),
        requires=("weights_are_freed",),
    ),
    described(memory.gathers_layer_by_layer, networks.weighed_trainings, requires=("weights_are_freed",)),
    described(memory.gradients_are_sharded, networks.sharded_trainings(wide=True), requires=_TRAINED),
    described(memory.optimizer_state_is_sharded, networks.sharded_trainings(wide=True), requires=_TRAINED),
    described(precision.keeps_full_precision, _HALF, requires=_TRAINED),
    described(precision.computes_in_the_dtype, _HALF, requires=("keeps_full_precision",)),
    described(checks.forward_keywords, networks.sharded_trainings(keyword=True), requires=_TRAINED),
    described(
        memory.memory_of_weights_is_given_back,
        networks.weighed_trainings,
        "extended",
        requires=("gathers_layer_by_layer",),
    ),
    described(
        memory.memory_is_given_back_in_evaluation_mode,
        having(networks.weighed_trainings, in_evaluation=True),
        "extended",
        requires=("memory_of_weights_is_given_back",),
    ),
    described(memory.memory_does_not_grow, networks.lasting_trainings, "extended", requires=_TRAINED),
    described(checks.starts_from_rank_0, networks.sharded_trainings(alike=False), "extended", requires=_GATHERED),
    described(checks.trains_in_float64, networks.sharded_trainings(dtype="float64"), "extended", requires=_TRAINED),
    described(checks.biases, networks.sharded_trainings(biased=True), "extended", requires=_TRAINED),
    described(
        checks.evaluation_between_steps, networks.sharded_trainings(evaluates=True), "extended", requires=_TRAINED
    ),
    described(checks.accumulates_gradients, networks.sharded_trainings(micro_batches=2), "extended", requires=_TRAINED),
    described(
        checks.frozen_parameters_stay,
        networks.sharded_trainings(frozen=True, biased=True),
        "extended",
        requires=_TRAINED,
    ),
    described(checks.buffers_reach_forward, networks.sharded_trainings(buffered=True), "extended", requires=_TRAINED),
    described(checks.tied_parameters, networks.tied_trainings, "extended", requires=_TRAINED),
    described(checks.scalar_parameter, networks.sharded_trainings(scalar=True), "extended", requires=_TRAINED),
    described(checks.layer_used_twice, networks.trainings_with_a_layer_used_twice, "extended", requires=_TRAINED),
    described(
        checks.several_forwards_one_backward,
        networks.sharded_trainings(micro_batches=2, joined=True),
        "extended",
        requires=("accumulates_gradients",),
    ),
    described(
        checks.cleared_after_forward, networks.sharded_trainings(clears_late=True), "extended", requires=_TRAINED
    ),
    described(
        checks.non_contiguous_parameter,
        networks.sharded_trainings(transposed=True, alike=False),
        "extended",
        requires=("starts_from_rank_0", *_TRAINED),
    ),
    described(
        checks.trains_in_evaluation_mode, networks.sharded_trainings(in_evaluation=True), "extended", requires=_TRAINED
    ),
    Check(
        "on_two_machines",
        "On two machines, each rank has the shard of its rank among all ranks.",
        having(networks.sharded_trainings(), two_machines=True),
        checks.sharded_training_equals_one_process,
        "robustness",
        level="extended",
        requires=_TRAINED,
        advice=TWO_MACHINES,
    ),
    described(checks.unused_everywhere, networks.sharded_trainings(unused=True), "extended", requires=_TRAINED),
    described(
        memory.uneven_parameters_are_sharded,
        networks.sharded_trainings(wide=True, uneven=True),
        "extended",
        requires=(*_SHARDED, "parts_of_any_shape"),
    ),
    described(
        memory.frozen_parameters_are_sharded,
        networks.sharded_trainings(wide=True, frozen=True),
        "extended",
        requires=(*_SHARDED, "frozen_parameters_stay"),
    ),
    described(
        checks.frozen_parameters_from_rank_0,
        networks.sharded_trainings(alike=False, frozen=True),
        "extended",
        requires=("starts_from_rank_0", "frozen_parameters_stay"),
    ),
)
