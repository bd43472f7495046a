"""The component `fsdp`."""

from conformance.checks.aspect import Aspect
from conformance.components.component import Component
from conformance.components.fsdp.assertions import UNEVEN_WEIGHTS
from conformance.components.fsdp.case import FsdpCase
from conformance.components.fsdp.numbers import draw
from conformance.components.fsdp.table import CHECKS
from conformance.execution.asked import for_each_rank
from conformance.submissions.contract import Function, part

FSDP = Component(
    contract=part(
        "fsdp",
        Function("get_fsdp", ("module", "compute_dtype")),
        Function("fsdp_on_after_backward", ("fsdp_model", "optimizer")),
        Function("fsdp_gather_full_params", ("fsdp_model",)),
    ),
    about="Fully sharded data parallelism: each rank keeps a share of every parameter.",
    exercise="conformance.components.fsdp.on_ranks:train",
    numbers=for_each_rank(draw),
    simplest=FsdpCase(),
    checks=CHECKS,
    aspects=(
        Aspect(
            "equals the unsharded model",
            4,
            (
                "results_are_waited_for",
                "gathers_whole_parameters",
                "training_equals_one_process",
                "trains[keyword_arguments]",
            ),
            essential=True,
        ),
        Aspect("parameters are sharded", 4, ("parameters_are_sharded", "nothing_whole_is_kept"), essential=True),
        Aspect("gradients and state are sharded", 2, ("gradients_are_sharded", "state_is_sharded")),
        Aspect(
            "weights are gathered and freed",
            2.5,
            ("weights_are_freed", "weights_are_freed[in_backward]", "gathers_layer_by_layer"),
        ),
        Aspect("precision", 1.5, ("keeps_full_precision", "computes_in_the_dtype")),
        Aspect("unusual sizes", 1, ("trains[uneven_shards]",)),
    ),
    advice=lambda case: UNEVEN_WEIGHTS if case.uneven else "",
)
