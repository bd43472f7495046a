"""The component `sync_batchnorm`."""

from conformance.checks.aspect import Aspect
from conformance.components.component import Component
from conformance.components.sync_batchnorm.case import SyncBatchNormCase
from conformance.components.sync_batchnorm.numbers import draw
from conformance.components.sync_batchnorm.table import CHECKS
from conformance.execution.asked import for_each_rank
from conformance.submissions.contract import Function, part

SYNC_BATCHNORM = Component(
    contract=part(
        "sync_batchnorm",
        Function("convert_sync_batchnorm", ("module",)),
    ),
    about="Makes batch norms compute their statistics over the samples of all ranks.",
    exercise="conformance.components.sync_batchnorm.on_ranks:normalise",
    numbers=for_each_rank(draw),
    simplest=SyncBatchNormCase(),
    checks=CHECKS,
    aspects=(
        Aspect(
            "statistics over all ranks",
            5,
            (
                "results_are_waited_for",
                "forward_over_all_ranks",
                "backward_over_all_ranks",
                "gradients_of_weight_and_bias",
            ),
            essential=True,
        ),
        Aspect(
            "running statistics and evaluation",
            2,
            ("running_statistics", "evaluation_by_running_statistics", "no_collective_in_evaluation"),
        ),
        Aspect("conversion", 1.5, ("conversion_keeps_state", "trains[volumes]", "arguments_stay")),
        Aspect(
            "unusual sizes",
            1.5,
            ("trains[uneven_batches]", "one_sample_on_each_rank", "gradients_of_weight_and_bias[first_layer]"),
        ),
    ),
)
