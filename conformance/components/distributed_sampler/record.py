"""The component `distributed_sampler`."""

from conformance.checks.aspect import Aspect
from conformance.components.component import Component
from conformance.components.distributed_sampler.case import SamplerCase
from conformance.components.distributed_sampler.numbers import draw
from conformance.components.distributed_sampler.table import CHECKS
from conformance.execution.asked import for_each_rank
from conformance.submissions.contract import Function, part

DISTRIBUTED_SAMPLER = Component(
    contract=part(
        "distributed_sampler",
        Function("get_distributed_sampler", ("dataset", "num_replicas", "rank", "shuffle", "seed", "drop_last")),
    ),
    about="Deals the samples of a data set to the ranks, in another order each epoch.",
    exercise="conformance.components.distributed_sampler.on_ranks:sample",
    numbers=for_each_rank(draw),
    simplest=SamplerCase(),
    checks=CHECKS,
    aspects=(
        Aspect(
            "each sample goes to one rank",
            2.5,
            ("equal_shares", "every_sample_once", "drop_last_drops_least", "seed_shared_by_ranks"),
            essential=True,
        ),
        Aspect(
            "order of samples",
            2.5,
            ("shuffles", "set_epoch_reshuffles", "reproducible", "seed_decides", "no_shuffling_unless_asked"),
        ),
    ),
)
