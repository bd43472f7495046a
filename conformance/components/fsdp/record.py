"""The component `fsdp`."""

from conformance.components.component import Component
from conformance.components.fsdp.assertions import UNEVEN_WEIGHTS
from conformance.components.fsdp.case import FsdpCase, draw
from conformance.components.fsdp.scenarios import network
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
    simplest=FsdpCase(1, network(2, (2, 2))),
    checks=CHECKS,
    advice=lambda case: UNEVEN_WEIGHTS if case.unevenly_shared else "",
)
