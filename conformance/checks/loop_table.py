"""Which checks each part of the training loop is held to, in the order in which they run."""

from conformance.checks import (
    accumulation,
    checkpoint,
    evaluation,
    loader,
    overhead,
    sampler,
    sampler_orders,
    two_machines,
)
from conformance.checks.check import Check
from conformance.checks.fsdp_table import FSDP_CHECKS
from conformance.checks.norm_table import NORM_CHECKS
from conformance.strategies import loop
from conformance.strategies.parts import having

_OVERHEAD = (
    Check(overhead.overhead_after_backward, loop.overheads),
    Check(overhead.overhead_of_one_bucket, having(loop.overheads, single=True), requires=("overhead_after_backward",)),
    Check(overhead.bucket_size_at_the_optimum, loop.overheads),
)

_SHARED, _RESHUFFLED = ("every_sample_once",), ("set_epoch_reshuffles",)
_SAMPLER = (
    Check(sampler.equal_shares, loop.samplings(shuffle=False)),
    Check(sampler.every_sample_once, loop.samplings(shuffle=False), points=2, requires=("equal_shares",)),
    Check(sampler.fewer_samples_than_ranks, loop.tiny_samplings, "extended", requires=_SHARED),
    Check(sampler.drop_last_drops_least, loop.dropping_samplings, requires=("equal_shares",)),
    Check(sampler.seed_shared_by_ranks, loop.samplings(shuffle=True), points=2, requires=_SHARED),
    Check(sampler_orders.shuffles, loop.long_samplings(shuffle=True), requires=_SHARED),
    Check(
        sampler_orders.set_epoch_reshuffles,
        loop.long_samplings(shuffle=True, epochs=loop.MANY_EPOCHS),
        points=2,
        requires=("shuffles",),
    ),
    Check(sampler_orders.epochs_repeat, loop.samplings(shuffle=True, epochs=(0, 1, 0, 5, 6)), requires=_SHARED),
    Check(sampler_orders.seed_decides, loop.long_samplings(shuffle=True), requires=("shuffles",)),
    Check(sampler_orders.no_shuffling_unless_asked, loop.samplings(shuffle=False), requires=_SHARED),
    Check(
        sampler_orders.iterates_again,
        loop.long_samplings(shuffle=True, epochs=(1, None)),
        "extended",
        requires=("epochs_repeat",),
    ),
    Check(
        sampler_orders.begins_with_epoch_0,
        loop.long_samplings(shuffle=True, epochs=(None, 0)),
        "extended",
        requires=("epochs_repeat",),
    ),
    Check(
        sampler_orders.starts_over,
        having(loop.long_samplings(shuffle=True, epochs=(0,)), left=True),
        "extended",
        requires=("epochs_repeat",),
    ),
    Check(
        sampler_orders.epochs_have_other_neighbours,
        loop.long_samplings(shuffle=True, epochs=loop.MANY_EPOCHS),
        "extended",
        requires=_RESHUFFLED,
    ),
    Check(sampler_orders.mixes_over_ranks, loop.indivisible_samplings(), "extended", requires=_RESHUFFLED),
    Check(
        sampler.drops_others_in_other_epochs,
        loop.indivisible_samplings(drop_last=True),
        "extended",
        requires=(*_RESHUFFLED, "drop_last_drops_least"),
    ),
    Check(sampler.shares_of_other_replicas, loop.samplings_for_others, "extended", requires=("seed_shared_by_ranks",)),
    Check(sampler.leaves_the_global_generator, loop.long_samplings(shuffle=True), "extended", requires=("shuffles",)),
    Check(
        sampler_orders.repeats_in_another_run,
        having(loop.long_samplings(shuffle=True), later=True),
        "extended",
        requires=("shuffles", "epochs_repeat"),
    ),
    Check(sampler.many_samples, loop.large_samplings, "extended", requires=_SHARED),
)

_COUNTED, _TWICE = ("global_accuracy",), loop.evaluated_again(loop.even_evaluations)
_EVALUATION = (
    Check(evaluation.counts_are_waited_for, loop.gated(loop.even_evaluations)),
    Check(evaluation.global_accuracy, loop.even_evaluations, points=2, requires=("counts_are_waited_for",)),
    Check(evaluation.weighted_by_samples, loop.uneven_evaluations, points=2, requires=_COUNTED),
    Check(evaluation.counts_anew, _TWICE, requires=_COUNTED),
    Check(evaluation.ranks_with_fewer_batches, loop.ragged_evaluations, "extended", requires=_COUNTED),
    Check(evaluation.in_evaluation_mode, loop.even_evaluations, "extended", requires=_COUNTED),
    Check(evaluation.leaves_the_mode, _TWICE, "extended", requires=_COUNTED),
    Check(evaluation.leaves_the_mode_of_each_module, _TWICE, "extended", requires=("leaves_the_mode",)),
    Check(evaluation.without_gradients, loop.even_evaluations, "extended", requires=_COUNTED),
    Check(evaluation.leaves_gradients_on_or_off, _TWICE, "extended", requires=_COUNTED),
    Check(evaluation.leaves_the_parameters, _TWICE, "extended", requires=_COUNTED),
    Check(evaluation.leaves_the_global_generators, loop.even_evaluations, "extended", requires=_COUNTED),
    Check(evaluation.counts_exactly, loop.half_evaluations, "extended", requires=_COUNTED),
)
_SAME = ("reproducible",)
_GENERATOR = (
    Check(loader.reproducible, loop.generators),
    Check(loader.differs_by_rank, loop.generators, points=2, requires=_SAME),
    Check(loader.seed_decides, loop.generators, requires=_SAME),
    Check(loader.leaves_the_global_generator, loop.generators, requires=_SAME),
    Check(loader.streams_are_apart, loop.generators, "extended", requires=("differs_by_rank",)),
    Check(
        two_machines.draws_on_two_machines,
        having(loop.generators, two_machines=True),
        "extended",
        requires=("differs_by_rank",),
    ),
    Check(loader.generators_are_apart, loop.generators, "extended", requires=_SAME),
)

_BIG = ("equals_one_big_batch",)
_ACCUMULATION = (
    Check(accumulation.one_optimizer_step, loop.accumulations()),
    Check(accumulation.equals_one_big_batch, loop.accumulations(), points=2, requires=("one_optimizer_step",)),
    Check(accumulation.steps_start_afresh, loop.accumulations(steps=3), requires=_BIG),
    Check(accumulation.fewer_in_the_last_step, loop.shrinking_accumulations, requires=("steps_start_afresh",)),
    Check(accumulation.one_exchange_of_gradients, loop.accumulations(), points=2, requires=_BIG),
    Check(accumulation.scaler_used, loop.accumulations(steps=2, scaled=True), requires=_BIG),
    Check(accumulation.overflow_skips_the_step, loop.overflowing, requires=("scaler_used",)),
    Check(
        accumulation.forward_through_the_wrapper,
        loop.accumulations(at="forward"),
        "extended",
        requires=("one_exchange_of_gradients",),
    ),
    Check(
        accumulation.one_micro_batch_at_a_time,
        loop.accumulations(),
        "extended",
        requires=("forward_through_the_wrapper",),
    ),
    Check(
        accumulation.finishes_before_the_step,
        loop.scaled_or_not(loop.accumulations(steps=2, at="finish")),
        "extended",
        requires=(*_BIG, "scaler_used"),
    ),
    Check(
        accumulation.looks_for_overflow_when_finished,
        having(loop.overflowing, at="finish"),
        "extended",
        requires=("overflow_skips_the_step", "finishes_before_the_step"),
    ),
    Check(
        accumulation.one_exchange_with_a_scaler,
        loop.accumulations(scaled=True),
        "extended",
        requires=("one_exchange_of_gradients", "scaler_used"),
    ),
    Check(accumulation.leaves_the_micro_batches, loop.accumulations(), "extended", requires=_BIG),
    Check(accumulation.leaves_the_modes, loop.accumulations(), "extended", requires=_BIG),
)

_LOADED = ("model_comes_back",)
_CHECKPOINT = (
    Check(checkpoint.model_comes_back, loop.checkpoints(), points=2),
    Check(checkpoint.epoch_comes_back, loop.checkpoints(), requires=_LOADED),
    Check(checkpoint.training_goes_on, loop.checkpoints(), points=2, requires=_LOADED),
    Check(checkpoint.scaler_comes_back, loop.checkpoints(), requires=_LOADED),
    Check(checkpoint.one_rank_writes, loop.checkpoints(apart=True), requires=_LOADED),
    Check(
        two_machines.writes_on_two_machines,
        having(loop.checkpoints(apart=True), two_machines=True),
        "extended",
        requires=("one_rank_writes",),
    ),
    Check(checkpoint.another_world_size, loop.checkpoints_of_other_worlds, requires=("training_goes_on",)),
    Check(checkpoint.survives_a_failed_save, loop.failing_checkpoints, "extended", requires=_LOADED),
    Check(checkpoint.complete_when_it_returns, loop.checkpoints(), "extended", requires=_LOADED),
    Check(
        checkpoint.saving_leaves_training_alone,
        loop.checkpoints(goes_on=True),
        "extended",
        requires=("training_goes_on",),
    ),
    Check(checkpoint.the_last_save_counts, loop.checkpoints(again=True), requires=_LOADED),
    Check(checkpoint.each_path_is_a_file_of_its_own, loop.checkpoints(later=True), requires=_LOADED),
    Check(
        checkpoint.loads_what_was_saved_since,
        loop.checkpoints(reloaded=True),
        "extended",
        requires=("training_goes_on", "the_last_save_counts"),
    ),
    Check(
        checkpoint.failed_saves_raise,
        loop.failing_checkpoints,
        "extended",
        requires=("survives_a_failed_save",),
    ),
    Check(checkpoint.saves_to_any_disk, loop.checkpoints(other_disk=True), "extended", requires=_LOADED),
    Check(checkpoint.other_files_stay, loop.checkpoints(), "extended", requires=_LOADED),
    Check(checkpoint.ranks_draw_apart, loop.checkpoints(), "extended", requires=_LOADED),
    Check(
        checkpoint.scaler_may_be_left_out,
        loop.checkpoints_without_scaler,
        "extended",
        requires=("training_goes_on",),
    ),
)

LOOP_CHECKS: dict[str, tuple[Check, ...]] = {
    "overhead_model": _OVERHEAD,
    "distributed_sampler": _SAMPLER,
    "evaluation": _EVALUATION,
    "loader_generator": _GENERATOR,
    "gradient_accumulation": _ACCUMULATION,
    "sync_batchnorm": NORM_CHECKS,
    "checkpoint": _CHECKPOINT,
    "fsdp": FSDP_CHECKS,
}
