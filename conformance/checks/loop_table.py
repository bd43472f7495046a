"""Which checks each part of the training loop is held to, in the order in which they run."""

from conformance.checks import overhead
from conformance.checks.check import Check
from conformance.strategies import loop

_OVERHEAD = (
    Check(overhead.overhead_after_backward, loop.overheads),
    Check(overhead.bucket_size_at_the_optimum, loop.overheads),
)

LOOP_CHECKS: dict[str, tuple[Check, ...]] = {
    "overhead_model": _OVERHEAD,
}
