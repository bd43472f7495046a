"""The checks, in the order in which they run."""

from conformance.checks.check import described
from conformance.components.overhead_model import checks
from conformance.strategies import loop
from conformance.strategies.building_blocks import having

CHECKS = (
    described(checks.overhead_after_backward, loop.overheads),
    described(
        checks.overhead_of_one_bucket, having(loop.overheads, single=True), requires=("overhead_after_backward",)
    ),
    described(checks.bucket_size_at_the_optimum, loop.overheads),
)
