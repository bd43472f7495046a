"""Which checks each part of the training loop is held to, in the order in which they run."""

from conformance.checks import overhead, sampler
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

LOOP_CHECKS: dict[str, tuple[Check, ...]] = {
    "overhead_model": _OVERHEAD,
    "distributed_sampler": _SAMPLER,
}
