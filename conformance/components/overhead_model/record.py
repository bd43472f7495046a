"""The component `overhead_model`."""

from conformance.checks.aspect import Aspect
from conformance.components.component import Component
from conformance.components.overhead_model.case import OverheadCase
from conformance.components.overhead_model.numbers import draw
from conformance.components.overhead_model.table import CHECKS
from conformance.execution.asked import for_each_rank
from conformance.submissions.contract import Function, part

OVERHEAD_MODEL = Component(
    contract=part(
        "overhead_model",
        Function("ddp_overhead", ("s", "w", "o", "n_b")),
        Function("optimal_bucket_size", ("s", "w", "o")),
    ),
    about="Predicts the time that communication adds to a step, and the best size of a bucket.",
    exercise="conformance.components.overhead_model.on_ranks:predict",
    numbers=for_each_rank(draw),
    simplest=OverheadCase(),
    checks=CHECKS,
    aspects=(
        Aspect(
            "overhead of communication",
            3.5,
            ("overhead_after_backward", "overhead_after_backward[one_bucket]"),
            essential=True,
        ),
        Aspect("best bucket size", 1.5, ("bucket_size_at_the_optimum",)),
    ),
)
