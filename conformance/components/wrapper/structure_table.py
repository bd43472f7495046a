"""Which checks of overlap and collective structure wrappers are held to, by what their names promise."""

from dataclasses import replace

from conformance.checks import communication, traffic
from conformance.checks.check import Check
from conformance.strategies import communication as structure
from conformance.strategies import wrapper as wrapping
from conformance.strategies import wrapper_extended as beyond
from conformance.strategies.building_blocks import having

_NUMBERS = ("gradients_averaged",)
_SENT_ONCE = ("gradients_travel_once",)
_OVERLAP = Check(
    communication.overlaps_backward, structure.deep_or_frozen, points=2, requires=_NUMBERS, shows="overlap"
)
_STARTS = Check(
    communication.starts_in_backward, structure.broad_or_frozen, points=2, requires=_NUMBERS, shows="overlap"
)
_ONCE = Check(traffic.gradients_travel_once, structure.broad_or_tied, requires=_NUMBERS, shows="volume")
_FLAT = (
    Check(
        traffic.one_collective_per_dtype,
        structure.broad_in_groups,
        points=2,
        requires=_NUMBERS,
        shows="collectives",
    ),
    Check(
        traffic.as_many_collectives_as_dtypes,
        wrapping.in_two_dtypes,
        requires=("mixed_dtypes", "one_collective_per_dtype"),
        shows="collectives",
    ),
)
_EACH = Check(
    traffic.one_collective_per_parameter, structure.deep, requires=("overlaps_backward",), shows="collectives"
)
_BUCKETS = (
    Check(traffic.bucket_size_respected, structure.with_bucket_size, requires=_SENT_ONCE, shows="collectives"),
    Check(traffic.unbounded_bucket, structure.with_one_bucket, requires=_NUMBERS, shows="collectives"),
    Check(
        traffic.bucket_size_of_what_trains,
        structure.with_frozen_between,
        requires=("bucket_size_respected", "frozen_parameters_stay"),
        shows="collectives",
    ),
)
_BUCKET_OF_EACH_DTYPE = Check(
    traffic.bucket_of_each_dtype,
    wrapping.of_alternating_dtypes,
    "extended",
    requires=("mixed_dtypes", "unbounded_bucket"),
    shows="collectives",
)
_AFTER_NO_SYNC = Check(
    communication.overlaps_after_no_sync,
    beyond.overlapping_lazily,
    "extended",
    requires=("accumulates_without_synchronising", "overlaps_backward"),
    shows="overlap",
)
_AFTER_EVALUATION = Check(
    communication.overlaps_after_evaluation,
    having(structure.deep_or_frozen, evaluates=True),
    "extended",
    requires=("evaluation_between_steps", "overlaps_backward"),
    shows="overlap",
)
STRUCTURE: dict[str, tuple[Check, ...]] = {
    "naive_ddp": (replace(_ONCE, level="extended"),),
    "flat_ddp": (*_FLAT, _ONCE),
    "ddp_individual_parameters": (_OVERLAP, _EACH, _ONCE),
    "ddp_bucketed": (_OVERLAP, _ONCE, *_BUCKETS, _BUCKET_OF_EACH_DTYPE),
    "ddp": (_STARTS, _ONCE),
}
_OVERLAPPING = (_AFTER_NO_SYNC, _AFTER_EVALUATION)
LATER_STRUCTURE = {name: _OVERLAPPING if _OVERLAP in checks else () for name, checks in STRUCTURE.items()}
