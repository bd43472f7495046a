"""Which checks each part of the training loop is held to, in the order in which they run."""

from conformance.checks import evaluation, loader, overhead, sampler
from conformance.checks.check import Check
from conformance.strategies import loop

_OVERHEAD = (
    Check(overhead.overhead_after_backward, loop.overheads),
    Check(overhead.bucket_size_at_the_optimum, loop.overheads),
)

_SHARED = ("every_sample_once",)
_SAMPLER = (
    Check(sampler.equal_shares, loop.samplings(shuffle=False)),
    Check(sampler.every_sample_once, loop.samplings(shuffle=False), points=2, requires=("equal_shares",)),
    Check(sampler.drop_last_drops_least, loop.samplings(shuffle=False, drop_last=True), requires=("equal_shares",)),
    Check(sampler.seed_shared_by_ranks, loop.samplings(shuffle=True), points=2, requires=_SHARED),
    Check(sampler.shuffles, loop.long_samplings(shuffle=True), requires=_SHARED),
    Check(sampler.set_epoch_reshuffles, loop.long_samplings(shuffle=True), points=2, requires=("shuffles",)),
    Check(sampler.epochs_repeat, loop.samplings(shuffle=True), requires=_SHARED),
    Check(sampler.seed_decides, loop.long_samplings(shuffle=True), requires=("shuffles",)),
    Check(sampler.no_shuffling_unless_asked, loop.samplings(shuffle=False), requires=_SHARED),
)

_COUNTED = ("global_accuracy",)
_EVALUATION = (
    Check(evaluation.global_accuracy, loop.even_evaluations, points=2),
    Check(evaluation.weighted_by_samples, loop.uneven_evaluations, points=2, requires=_COUNTED),
    Check(evaluation.ranks_with_fewer_batches, loop.ragged_evaluations, "extended", requires=_COUNTED),
    Check(evaluation.in_evaluation_mode, loop.even_evaluations, "extended", requires=_COUNTED),
    Check(evaluation.leaves_the_mode, loop.even_evaluations, "extended", requires=_COUNTED),
    Check(evaluation.without_gradients, loop.even_evaluations, "extended", requires=_COUNTED),
)
_SAME = ("reproducible",)
_GENERATOR = (
    Check(loader.reproducible, loop.generators),
    Check(loader.differs_by_rank, loop.generators, points=2, requires=_SAME),
    Check(loader.seed_decides, loop.generators, requires=_SAME),
    Check(loader.leaves_the_global_generator, loop.generators, requires=_SAME),
)

LOOP_CHECKS: dict[str, tuple[Check, ...]] = {
    "overhead_model": _OVERHEAD,
    "distributed_sampler": _SAMPLER,
    "evaluation": _EVALUATION,
    "loader_generator": _GENERATOR,
}
