"""The component `distributed_sampler`: its checks in the order in which they run, and its record."""

from functools import partial

from conformance.checks.aspect import Aspect
from conformance.checks.check import Check
from conformance.checks.steps import global_generators_stay
from conformance.components.component import Component
from conformance.components.distributed_sampler import orders, shares
from conformance.components.distributed_sampler import scenarios as data
from conformance.components.distributed_sampler.case import SamplerCase
from conformance.execution.asked import for_each_rank
from conformance.strategies.building_blocks import having, one_of
from conformance.submissions.contract import Function, part
from conformance.workload.numbers import seeds

_SHARED, _RESHUFFLED = ("every_sample_once",), ("set_epoch_reshuffles",)
_core = partial(Check, requires=_SHARED)
_extended = partial(Check, level="extended")
# fmt: off
_CHECKS = (
    Check("equal_shares", "Every rank gets as many samples as every other rank, and as many as `len(sampler)` says.",
        data.unshuffled, shares.equal_shares, "numbers"),
    Check("every_sample_once",
        "All samples are used, each by one rank; only as many as even out the shares are used twice.", data.unshuffled,
        shares.every_sample_once, "numbers", requires=("equal_shares",)),
    Check("drop_last_drops_least",
        "With `drop_last`, shares are equal, no sample is used twice, and fewer are left out than there are ranks.",
        data.dropping, shares.drop_last_drops_least, "numbers", requires=("equal_shares",)),
    _core("seed_shared_by_ranks",
        "In every epoch, all ranks shuffle alike: their shares are disjoint, and all samples are used.",
        data.shuffled, shares.disjoint_in_every_epoch, "order of samples"),
    _extended("every_sample_once[few_or_many]",
        "Each rank gets a share of a data set with fewer samples than ranks, and of one with more than 65,536 samples.",
        one_of(data.tiny, data.large), shares.every_sample_once, "numbers", requires=_SHARED,
        advice="There is one sample here, or more than 65,536: add samples again and again until the shares are even, "
        "and keep indices in Python's int or in int64: 16 bits hold 65,536 numbers."),
    _core("shuffles", "With `shuffle=True`, the samples come in another order than without.", data.long,
        orders.shuffles, "order of samples", requires=()),
    _core("set_epoch_reshuffles", "After `set_epoch`, the order is another one.",
        having(data.long, epochs=data.MANY_EPOCHS), orders.set_epoch_reshuffles, "order of samples",
        requires=("shuffles",)),
    _core("reproducible",
        "The same seed and epoch give the same order again, so that a training run can be repeated and resumed.",
        having(data.shuffled, epochs=(0, 1, 0, 5, 6)), orders.reproducible, "order of samples",
        requires=()),
    _core("seed_decides", "Another seed gives another order.", data.long, orders.seed_decides, "order of samples",
        requires=("shuffles",)),
    _core("no_shuffling_unless_asked", "With `shuffle=False`, every epoch has the same order.", data.unshuffled,
        orders.no_shuffling_unless_asked, "order of samples", requires=()),
    _extended("starts_anew",
        "An iteration gives its epoch's order again, after one that was left half way, and before any `set_epoch`.",
        one_of(
            having(data.long, epochs=(1, None)),
            having(data.long, epochs=(None, 0)),
            having(data.long, epochs=(0,), left=True),
        ), orders.starts_anew, "order of samples", requires=("reproducible",)),
    _extended("set_epoch_reshuffles[everything]",
        "In another epoch, samples come after others and on other ranks, and `drop_last` leaves out others.",
        one_of(data.indivisible, having(data.indivisible, drop_last=True)),
        orders.reshuffles_everything, "order of samples", requires=(*_RESHUFFLED, "drop_last_drops_least")),
    _extended("shares_of_other_replicas",
        "`num_replicas` and `rank` decide the share, not the process group: a rank may ask for other replicas' shares.",
        data.shared_out_for_others, shares.shares_of_other_replicas, "numbers", requires=("seed_shared_by_ranks",)),
    _extended("global_generators_stay",
        "Shuffling leaves the global generators of random numbers as they were: torch's, Python's and NumPy's.",
        data.long, global_generators_stay, "robustness", requires=("shuffles",),
        advice="Shuffle with a `torch.Generator()` of its own: seeding the global one makes dropout masks and "
        "augmentations repeat in every epoch, alike on all ranks."),
    _extended("reproducible[another_run]",
        "The order depends on seed and epoch alone: it is the same at another time, and in another process.",
        having(data.long, later=True), orders.reproducible_in_another_run, "order of samples",
        requires=("shuffles", "reproducible")),
)
_ASPECTS = (
    Aspect("each sample goes to one rank", 2.5,
        ("equal_shares", "every_sample_once", "drop_last_drops_least", "seed_shared_by_ranks"), essential=True),
    Aspect("order of samples", 2.5,
        ("shuffles", "set_epoch_reshuffles", "reproducible", "seed_decides", "no_shuffling_unless_asked")),
)
# fmt: on
DISTRIBUTED_SAMPLER = Component(
    contract=part(
        "distributed_sampler",
        Function("get_distributed_sampler", ("dataset", "num_replicas", "rank", "shuffle", "seed", "drop_last")),
    ),
    about="Deals the samples of a data set to the ranks, in another order each epoch.",
    exercise="conformance.components.distributed_sampler.on_ranks:sample",
    numbers=for_each_rank(seeds),
    simplest=SamplerCase(),
    checks=_CHECKS,
    aspects=_ASPECTS,
)
