"""What `overhead_model` is asked. Nothing here imports torch."""

from dataclasses import dataclass

from conformance.scenarios.drawn import Case


@dataclass(frozen=True, repr=False)
class OverheadCase(Case):
    """One gradient size, bandwidth, overhead per call and number of buckets: two or more, or if `single`, one."""

    single: bool = False
