"""Which checks each component is held to, in the order in which they run."""

from conformance.checks import communication, multi_node, precision, traffic, training
from conformance.checks.check import UNSYNCHRONISED, Check
from conformance.components.wrapper import extended, no_sync, participation
from conformance.components.wrapper.structure_table import LATER_STRUCTURE, STRUCTURE
from conformance.strategies import wrapper as wrapping
from conformance.strategies import wrapper_extended as beyond
from conformance.strategies.building_blocks import having
from conformance.strategies.combined import mixed

_OUT = (UNSYNCHRONISED,)
_SEEN = (UNSYNCHRONISED, "summed, not averaged", "divided twice", "never trained")
_RUNS = ("runs_to_the_end",)
_WAITED = ("results_are_waited_for",)
_NUMBERS = ("gradients_averaged",)

_BY_THEMSELVES = (
    "training_equals_one_process",
    "ranks_stay_identical",
    "frozen_parameters_stay",
    "tied_parameters",
    "scalar_parameter",
    "non_contiguous_parameter",
    "convolution",
    "layers_of_other_kinds",
    "gradient_clipping",
    "evaluation_between_steps",
    "uneven_batches",
    "zero_grad_in_place",
    "forward_keywords",
)
_WRAPPER_CORE = (
    Check(training.runs_to_the_end, wrapping.plain, rules_out=_OUT),
    Check(communication.results_are_waited_for, wrapping.gated, requires=_RUNS, shows="waits"),
    Check(training.initial_broadcast, wrapping.plain, requires=_WAITED, shows="broadcast", rules_out=_OUT),
    Check(training.one_rank, wrapping.on_one_rank, requires=_RUNS),
    Check(training.gradients_averaged, wrapping.plain, points=2, requires=("initial_broadcast",), rules_out=_OUT),
    Check(training.training_equals_one_process, wrapping.plain, points=2, requires=_NUMBERS, rules_out=_OUT),
    Check(training.ranks_stay_identical, wrapping.plain, requires=_NUMBERS, rules_out=_OUT),
    Check(precision.trains_in_float32, wrapping.in_float32, requires=_NUMBERS, rules_out=_SEEN),
    Check(precision.trains_in_bfloat16, wrapping.in_bfloat16, requires=_NUMBERS, rules_out=_SEEN),
    Check(precision.mixed_dtypes, wrapping.in_mixed_dtypes, requires=_NUMBERS, rules_out=_SEEN),
    Check(training.frozen_parameters_stay, wrapping.with_frozen, requires=_NUMBERS, rules_out=_OUT),
    Check(training.tied_parameters, wrapping.with_tied, requires=_NUMBERS, rules_out=_OUT),
    Check(training.scalar_parameter, wrapping.with_scale, requires=_NUMBERS, rules_out=_OUT),
    Check(training.non_contiguous_parameter, wrapping.with_transposed, requires=_NUMBERS, rules_out=_OUT),
    Check(training.convolution, wrapping.with_convolution, requires=_NUMBERS, rules_out=_OUT),
    Check(training.layers_of_other_kinds, wrapping.of_other_layers, requires=_NUMBERS, rules_out=_OUT),
    Check(
        training.gradient_clipping,
        wrapping.clipping,
        requires=_NUMBERS,
        rules_out=(*_OUT, "gradients of before clipping"),
    ),
    Check(training.evaluation_between_steps, wrapping.evaluating, requires=_NUMBERS, rules_out=_OUT),
    Check(training.uneven_batches, wrapping.uneven, requires=_NUMBERS, rules_out=_OUT),
    Check(training.zero_grad_in_place, wrapping.keeping_gradients, requires=_NUMBERS, rules_out=_OUT),
    Check(training.forward_keywords, wrapping.with_keyword, requires=_NUMBERS, rules_out=_OUT),
    Check(training.everything_together, mixed, requires=_BY_THEMSELVES, rules_out=_OUT),
)
_WRAPPER_EXTENDED = (
    Check(communication.work_does_not_grow, beyond.lasting, "extended", requires=_NUMBERS, shows="growth"),
    Check(communication.memory_does_not_grow, beyond.lasting, "extended", requires=_NUMBERS, shows="growth"),
    Check(extended.wrapping_makes_no_gradients, wrapping.plain, "extended", requires=_RUNS, shows="early_gradients"),
    Check(extended.mode_reaches_the_model, wrapping.evaluating, "extended", requires=_NUMBERS, shows="modes"),
    Check(extended.calls_the_model_once, wrapping.evaluating, "extended", requires=_NUMBERS, shows="modes"),
    Check(extended.two_models_side_by_side, beyond.beside_a_twin, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(extended.many_parameters, beyond.of_many_parameters, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(
        extended.cleared_after_forward,
        having(wrapping.plain, clears_late=True, steps=2),
        "extended",
        requires=_NUMBERS,
        rules_out=_OUT,
    ),
    Check(extended.buffers_broadcast, beyond.with_buffers, "extended", requires=_NUMBERS, shows="buffers"),
    Check(
        participation.gradient_order_differs,
        beyond.with_branch("order_by_rank"),
        "extended",
        requires=_NUMBERS,
        rules_out=_OUT,
    ),
    Check(participation.freezing_after_wrapping, beyond.freezing, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(
        participation.unused_on_some_ranks,
        beyond.with_branch("used_on_rank_0", "used_on_rank_1"),
        "extended",
        requires=_NUMBERS,
        rules_out=_OUT,
    ),
    Check(
        participation.each_rank_uses_another,
        beyond.with_branch("one_each"),
        "extended",
        requires=("unused_on_some_ranks",),
        rules_out=_OUT,
    ),
    Check(participation.unused_everywhere, beyond.with_branch("unused"), "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(participation.unfreezing_after_wrapping, beyond.unfreezing, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(
        traffic.everything_frozen,
        beyond.freezing_everything,
        "extended",
        requires=("freezing_after_wrapping",),
        shows="collectives",
    ),
    Check(
        extended.trains_in_evaluation_mode,
        beyond.in_evaluation_mode,
        "extended",
        requires=_NUMBERS,
        rules_out=_OUT,
    ),
    Check(
        participation.gradients_outside_the_optimizer, beyond.held_later, "extended", requires=_NUMBERS, rules_out=_OUT
    ),
    Check(extended.overflow_reaches_every_rank, beyond.overflowing, "extended", requires=_NUMBERS, shows="overflow"),
    Check(extended.empty_parameter, beyond.with_empty, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(extended.nested_arguments, beyond.with_nested, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(extended.accumulates_gradients, beyond.accumulating, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(extended.several_forwards_one_backward, beyond.joining, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(extended.recomputed_activations, beyond.recomputing, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(extended.recovers_from_an_exception, beyond.aborting, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(
        extended.accumulates_before_finishing,
        having(beyond.accumulating, finishes_once=True),
        "extended",
        requires=("accumulates_gradients",),
        rules_out=_OUT,
    ),
    Check(
        no_sync.accumulates_without_synchronising,
        beyond.accumulating_lazily,
        "extended",
        requires=("accumulates_gradients",),
        shows="lazy",
        rules_out=_OUT,
    ),
    Check(extended.sparse_gradients, beyond.with_sparse_gradients, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(extended.complex_parameter, beyond.with_complex_numbers, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(
        extended.range_of_float16,
        beyond.at_the_end_of_float16,
        "extended",
        requires=("frozen_parameters_stay",),
        rules_out=_OUT,
    ),
    Check(
        no_sync.no_sync_ends_with_an_exception,
        beyond.aborting_lazily,
        "extended",
        requires=("accumulates_without_synchronising", "recovers_from_an_exception"),
        rules_out=_OUT,
    ),
    Check(
        extended.loaded_weights_are_trained,
        beyond.loading,
        "extended",
        requires=_NUMBERS,
        rules_out=(*_OUT, "loaded weights not used"),
    ),
    Check(
        participation.used_in_some_steps,
        beyond.used_now_and_then,
        "extended",
        requires=("unused_everywhere",),
        rules_out=_OUT,
    ),
    Check(
        participation.used_by_ranks_in_turn,
        beyond.used_in_turn,
        "extended",
        requires=("unused_on_some_ranks",),
        rules_out=_OUT,
    ),
    Check(
        extended.large_parameter,
        beyond.with_large,
        "extended",
        requires=("trains_in_float32",),
        rules_out=_SEEN,
    ),
    Check(
        no_sync.no_sync_may_be_nested,
        beyond.nesting_no_sync,
        "extended",
        requires=("accumulates_without_synchronising",),
        shows="lazy",
        rules_out=_OUT,
    ),
    Check(
        no_sync.no_sync_on_one_rank,
        beyond.lazily_on_one_rank,
        "extended",
        requires=("accumulates_without_synchronising", "one_rank"),
    ),
    Check(extended.named_tuples, beyond.with_named_tuples, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(extended.wrapping_leaves_the_generators, wrapping.plain, "extended", requires=_RUNS, shows="generators"),
    Check(
        extended.uneven_sparse_gradients,
        beyond.with_uneven_sparse_gradients,
        "extended",
        requires=("sparse_gradients", "uneven_batches"),
        rules_out=_OUT,
    ),
    Check(
        extended.gradient_penalty,
        beyond.penalising,
        "extended",
        requires=_NUMBERS,
        rules_out=(*_OUT, "penalty not trained on"),
    ),
    Check(
        no_sync.unused_in_the_last_micro_batch,
        beyond.used_first_lazily,
        "extended",
        requires=("accumulates_without_synchronising", "unused_everywhere"),
        rules_out=_OUT,
    ),
    Check(
        participation.unused_while_accumulating,
        beyond.accumulating_unused,
        "extended",
        requires=("unused_on_some_ranks", "accumulates_gradients"),
        rules_out=_OUT,
    ),
    Check(
        extended.parameter_with_gaps,
        beyond.with_gaps,
        "extended",
        requires=("non_contiguous_parameter",),
        rules_out=_OUT,
    ),
    Check(extended.positional_arguments, beyond.with_two_arguments, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(extended.forward_without_gradients, beyond.peeking, "extended", requires=_NUMBERS, rules_out=_OUT),
    Check(
        multi_node.wraps_on_two_machines,
        having(wrapping.plain, two_machines=True),
        "extended",
        requires=_NUMBERS,
        rules_out=_OUT,
    ),
)


def wrapper_checks(name: str) -> tuple[Check, ...]:
    """Return the checks of one of the wrappers."""
    return (*_WRAPPER_CORE, *STRUCTURE[name], *_WRAPPER_EXTENDED, *LATER_STRUCTURE[name])
