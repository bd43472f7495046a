"""The checks, in the order in which they run."""

from conformance.checks.check import Check, described
from conformance.checks.generators import global_generators_stay
from conformance.components.distributed_sampler import checks, orders
from conformance.strategies import loop
from conformance.strategies.building_blocks import having

_SHARED, _RESHUFFLED = ("every_sample_once",), ("set_epoch_reshuffles",)
CHECKS = (
    described(checks.equal_shares, loop.samplings(shuffle=False)),
    described(checks.every_sample_once, loop.samplings(shuffle=False), points=2, requires=("equal_shares",)),
    described(checks.fewer_samples_than_ranks, loop.tiny_samplings, "extended", requires=_SHARED),
    described(checks.drop_last_drops_least, loop.dropping_samplings, requires=("equal_shares",)),
    described(checks.seed_shared_by_ranks, loop.samplings(shuffle=True), points=2, requires=_SHARED),
    described(orders.shuffles, loop.long_samplings(shuffle=True), requires=_SHARED),
    described(
        orders.set_epoch_reshuffles,
        loop.long_samplings(shuffle=True, epochs=loop.MANY_EPOCHS),
        points=2,
        requires=("shuffles",),
    ),
    described(orders.epochs_repeat, loop.samplings(shuffle=True, epochs=(0, 1, 0, 5, 6)), requires=_SHARED),
    described(orders.seed_decides, loop.long_samplings(shuffle=True), requires=("shuffles",)),
    described(orders.no_shuffling_unless_asked, loop.samplings(shuffle=False), requires=_SHARED),
    described(
        orders.iterates_again,
        loop.long_samplings(shuffle=True, epochs=(1, None)),
        "extended",
        requires=("epochs_repeat",),
    ),
    described(
        orders.begins_with_epoch_0,
        loop.long_samplings(shuffle=True, epochs=(None, 0)),
        "extended",
        requires=("epochs_repeat",),
    ),
    described(
        orders.starts_over,
        having(loop.long_samplings(shuffle=True, epochs=(0,)), left=True),
        "extended",
        requires=("epochs_repeat",),
    ),
    described(
        orders.epochs_have_other_neighbours,
        loop.long_samplings(shuffle=True, epochs=loop.MANY_EPOCHS),
        "extended",
        requires=_RESHUFFLED,
    ),
    described(orders.mixes_over_ranks, loop.indivisible_samplings(), "extended", requires=_RESHUFFLED),
    described(
        checks.drops_others_in_other_epochs,
        loop.indivisible_samplings(drop_last=True),
        "extended",
        requires=(*_RESHUFFLED, "drop_last_drops_least"),
    ),
    described(
        checks.shares_of_other_replicas, loop.samplings_for_others, "extended", requires=("seed_shared_by_ranks",)
    ),
    Check(
        "global_generators_stay",
        "Shuffling leaves the global generators of random numbers as they were: torch's, Python's and NumPy's.",
        loop.long_samplings(shuffle=True),
        global_generators_stay,
        "robustness",
        level="extended",
        requires=("shuffles",),
        advice="Shuffle with a `torch.Generator()` of its own: seeding the global one makes dropout masks and "
        "augmentations repeat in every epoch, alike on all ranks.",
    ),
    described(
        orders.repeats_in_another_run,
        having(loop.long_samplings(shuffle=True), later=True),
        "extended",
        requires=("shuffles", "epochs_repeat"),
    ),
    described(checks.many_samples, loop.large_samplings, "extended", requires=_SHARED),
)
