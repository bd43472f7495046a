"""The checks of the overhead model, in the order in which they run."""

from functools import partial

from hypothesis import strategies as st

from conformance.checks.check import Check
from conformance.components.overhead_model import assertions
from conformance.components.overhead_model.case import OverheadCase
from conformance.strategies.building_blocks import SEEDS, Bounds, Draw, having


@st.composite
def overheads(draw: Draw, _: Bounds) -> OverheadCase:
    """One prediction; it needs no other rank."""
    return OverheadCase(seed=draw(SEEDS))


_check = partial(Check, aspect="numbers")
# fmt: off
CHECKS = (
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
