"""Which checks fully sharded data parallelism is held to, in the order in which they run."""

from conformance.checks import fsdp, fsdp_memory, fsdp_precision, two_machines
from conformance.checks.check import Check
from conformance.strategies import fsdp as networks
from conformance.strategies import loop
from conformance.strategies.parts import having

_WAITED = ("shards_are_waited_for",)
_GATHERED = ("gathers_whole_parameters",)
_TRAINED = ("sharded_training_equals_one_process",)
_SHARDED = ("parameters_are_sharded",)
_HALF = networks.sharded_trainings(half=True)
FSDP_CHECKS = (
    Check(fsdp.shards_are_waited_for, loop.gated(networks.sharded_trainings())),
    Check(fsdp.gathers_whole_parameters, networks.sharded_trainings(), requires=_WAITED),
    Check(fsdp.sharded_training_equals_one_process, networks.sharded_trainings(), points=2, requires=_GATHERED),
    Check(fsdp.parts_of_any_shape, networks.sharded_trainings(uneven=True), requires=_TRAINED),
    Check(fsdp_memory.parameters_are_sharded, networks.sharded_trainings(wide=True), points=2, requires=_TRAINED),
    Check(fsdp_memory.nothing_whole_is_kept, networks.weighed_trainings, requires=_SHARDED),
    Check(fsdp_memory.weights_are_freed, networks.sharded_trainings(wide=True, depths=(5, 6)), requires=_SHARDED),
    Check(
        fsdp_memory.weights_are_freed_in_backward,
        networks.sharded_trainings(wide=True, depths=(5, 6)),
        requires=("weights_are_freed",),
    ),
    Check(fsdp_memory.gathers_layer_by_layer, networks.weighed_trainings, requires=("weights_are_freed",)),
    Check(fsdp_memory.gradients_are_sharded, networks.sharded_trainings(wide=True), requires=_TRAINED),
    Check(fsdp_memory.optimizer_state_is_sharded, networks.sharded_trainings(wide=True), requires=_TRAINED),
    Check(fsdp_precision.keeps_full_precision, _HALF, requires=_TRAINED),
    Check(fsdp_precision.computes_in_the_dtype, _HALF, requires=("keeps_full_precision",)),
    Check(fsdp.forward_keywords, networks.sharded_trainings(keyword=True), requires=_TRAINED),
    Check(
        fsdp_memory.memory_of_weights_is_given_back,
        networks.weighed_trainings,
        "extended",
        requires=("gathers_layer_by_layer",),
    ),
    Check(
        fsdp_memory.memory_is_given_back_in_evaluation_mode,
        having(networks.weighed_trainings, in_evaluation=True),
        "extended",
        requires=("memory_of_weights_is_given_back",),
    ),
    Check(fsdp_memory.memory_does_not_grow, networks.lasting_trainings, "extended", requires=_TRAINED),
    Check(fsdp.starts_from_rank_0, networks.sharded_trainings(alike=False), "extended", requires=_GATHERED),
    Check(fsdp.trains_in_float64, networks.sharded_trainings(dtype="float64"), "extended", requires=_TRAINED),
    Check(fsdp.biases, networks.sharded_trainings(biased=True), "extended", requires=_TRAINED),
    Check(fsdp.evaluation_between_steps, networks.sharded_trainings(evaluates=True), "extended", requires=_TRAINED),
    Check(fsdp.accumulates_gradients, networks.sharded_trainings(micro_batches=2), "extended", requires=_TRAINED),
    Check(
        fsdp.frozen_parameters_stay, networks.sharded_trainings(frozen=True, biased=True), "extended", requires=_TRAINED
    ),
    Check(fsdp.buffers_reach_forward, networks.sharded_trainings(buffered=True), "extended", requires=_TRAINED),
    Check(fsdp.tied_parameters, networks.tied_trainings, "extended", requires=_TRAINED),
    Check(fsdp.scalar_parameter, networks.sharded_trainings(scalar=True), "extended", requires=_TRAINED),
    Check(fsdp.layer_used_twice, networks.trainings_with_a_layer_used_twice, "extended", requires=_TRAINED),
    Check(
        fsdp.several_forwards_one_backward,
        networks.sharded_trainings(micro_batches=2, joined=True),
        "extended",
        requires=("accumulates_gradients",),
    ),
    Check(fsdp.cleared_after_forward, networks.sharded_trainings(clears_late=True), "extended", requires=_TRAINED),
    Check(
        fsdp.non_contiguous_parameter,
        networks.sharded_trainings(transposed=True, alike=False),
        "extended",
        requires=("starts_from_rank_0", *_TRAINED),
    ),
    Check(
        fsdp.trains_in_evaluation_mode, networks.sharded_trainings(in_evaluation=True), "extended", requires=_TRAINED
    ),
    Check(
        two_machines.shards_on_two_machines,
        having(networks.sharded_trainings(), two_machines=True),
        "extended",
        requires=_TRAINED,
    ),
    Check(fsdp.unused_everywhere, networks.sharded_trainings(unused=True), "extended", requires=_TRAINED),
    Check(
        fsdp_memory.uneven_parameters_are_sharded,
        networks.sharded_trainings(wide=True, uneven=True),
        "extended",
        requires=(*_SHARDED, "parts_of_any_shape"),
    ),
    Check(
        fsdp_memory.frozen_parameters_are_sharded,
        networks.sharded_trainings(wide=True, frozen=True),
        "extended",
        requires=(*_SHARDED, "frozen_parameters_stay"),
    ),
    Check(
        fsdp.frozen_parameters_from_rank_0,
        networks.sharded_trainings(alike=False, frozen=True),
        "extended",
        requires=("starts_from_rank_0", "frozen_parameters_stay"),
    ),
)
