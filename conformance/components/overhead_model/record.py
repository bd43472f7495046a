"""The component `overhead_model`: what is drawn, its checks in the order in which they run, and its record."""

from functools import partial

from hypothesis import strategies as st

from conformance.checks.aspect import Aspect
from conformance.checks.check import Check
from conformance.components.component import Component
from conformance.components.overhead_model import assertions
from conformance.components.overhead_model.case import OverheadCase, numbers
from conformance.execution.asked import for_each_rank
from conformance.strategies.building_blocks import SEEDS, Bounds, Draw, having
from conformance.submissions.contract import Function, part


@st.composite
def overheads(draw: Draw, _: Bounds) -> OverheadCase:
    """One prediction; it needs no other rank."""
    return OverheadCase(seed=draw(SEEDS))


_check = partial(Check, theme="numbers")
# fmt: off
_CHECKS = (
    _check("overhead_after_backward",
        "`ddp_overhead(s, w, o, n_b)` is s/(n_b w) + n_b o seconds: the last bucket, and the overhead of every call.",
        overheads, assertions.overhead_after_backward),
    _check("overhead_after_backward[one_bucket]",
        "With one bucket, the overhead is the time to send all gradients, and that of one call.",
        having(overheads, single=True), assertions.overhead_after_backward, requires=("overhead_after_backward",)),
    _check("bucket_size_at_the_optimum",
        "`optimal_bucket_size(s, w, o)` is sqrt(s w o) bytes, where the overhead is least.", overheads,
        assertions.bucket_size_at_the_optimum),
)
_ASPECTS = (
    Aspect("overhead of communication", 3.5, ("overhead_after_backward", "overhead_after_backward[one_bucket]"),
        essential=True),
    Aspect("best bucket size", 1.5, ("bucket_size_at_the_optimum",)),
)
# fmt: on
OVERHEAD_MODEL = Component(
    contract=part(
        "overhead_model",
        Function("ddp_overhead", ("s", "w", "o", "n_b")),
        Function("optimal_bucket_size", ("s", "w", "o")),
    ),
    about="Predicts the time that communication adds to a step, and the best size of a bucket.",
    exercise="conformance.components.overhead_model.on_ranks:predict",
    numbers=for_each_rank(numbers),
    simplest=OverheadCase(),
    checks=_CHECKS,
    aspects=_ASPECTS,
)
