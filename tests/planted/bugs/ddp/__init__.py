"""Bugs planted in the five data-parallel wrappers (`examples/correct`)."""

from bugs.ddp import (
    averaging,
    buckets,
    forward,
    initial_values,
    overlap,
    parameters,
    steps,
    traffic,
    unused_parameters,
    wild,
)

BUGS = [
    *averaging.BUGS,
    *buckets.BUGS,
    *forward.BUGS,
    *initial_values.BUGS,
    *overlap.BUGS,
    *parameters.BUGS,
    *steps.BUGS,
    *traffic.BUGS,
    *unused_parameters.BUGS,
    *wild.BUGS,
]
