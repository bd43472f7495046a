"""The checks, in the order in which they run."""

from conformance.checks.check import Check
from conformance.components.overhead_model import checks
from conformance.strategies import loop
from conformance.strategies.building_blocks import having

CHECKS = (
    Check(checks.overhead_after_backward, loop.overheads),
    Check(checks.overhead_of_one_bucket, having(loop.overheads, single=True), requires=("overhead_after_backward",)),
    Check(checks.bucket_size_at_the_optimum, loop.overheads),
)
