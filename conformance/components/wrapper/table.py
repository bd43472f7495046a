"""The checks of each wrapper, in the order in which they run."""

from dataclasses import replace
from functools import partial

from conformance.checks.check import Check
from conformance.checks.traffic import sent_once
from conformance.components.wrapper import collectives
from conformance.components.wrapper.core_table import CORE
from conformance.components.wrapper.extended_table import EXTENDED
from conformance.components.wrapper.overlap import overlaps_backward, starts_in_backward
from conformance.strategies import communication as draws
from conformance.strategies import wrapper, wrapper_extended
from conformance.strategies.building_blocks import having

_OVERLAPS = ("overlaps_backward",)
_check = partial(Check, aspect="communication", requires=("runs_to_the_end",))
_overlap = partial(_check, assertion=overlaps_backward)
_per_dtype = partial(_check, assertion=collectives.one_collective_per_dtype)
_bucket = partial(_check, assertion=collectives.bucket_size_respected)
# fmt: off
_OVERLAP = _overlap("overlaps_backward",
    "Gradients are communicated during backward: launched before the last one exists, and not waited for at once.",
    draws.deep_or_frozen)
_STARTS = _overlap("overlaps_backward",
    "Gradients are communicated during backward; one bucket of the whole model may start with the last gradient.",
    draws.broad_or_frozen, assertion=starts_in_backward)
_ONCE = _check("sent_once",
    "Each gradient is sent once in a step: no kind of collective carries more bytes than all gradients have, aligned.",
    draws.broad_or_tied, sent_once)
_FLAT = (
    _per_dtype("one_collective_per_dtype", "All gradients are sent together, in one collective.",
        draws.broad_in_groups),
    _per_dtype("one_collective_per_dtype[two_dtypes]",
        "Where parameters have two dtypes, there are two collectives, or one for both dtypes.", wrapper.in_two_dtypes,
        requires=("trains[mixed_dtypes]", "one_collective_per_dtype")),
)
_EACH = _check("one_collective_per_parameter",
    "Every gradient is sent by itself: there are as many collectives as parameters.", draws.deep,
    collectives.one_collective_per_parameter, requires=_OVERLAPS)
_BUCKETS = (
    _bucket("bucket_size_respected",
        "`bucket_size_mb` decides how many collectives there are: many with small buckets, one with a large one.",
        draws.with_bucket_size, requires=("sent_once",)),
    _bucket("bucket_size_respected[unbounded]",
        "`bucket_size_mb=None` means one bucket of unbounded size: training is right, with one collective.",
        draws.with_one_bucket, assertion=collectives.unbounded_bucket,
        advice="None means that no bucket is ever full before the last gradient is in it."),
    _bucket("bucket_size_respected[frozen_between]",
        "Frozen parameters, which have nothing to send, take no room in buckets.", draws.with_frozen_between,
        requires=("bucket_size_respected", "trains[frozen_parameters]"),
        advice="Frozen parameters lie between the others here: leave them out when buckets are filled."),
    _per_dtype("one_collective_per_dtype[two_dtypes]",
        "Where layers of two dtypes alternate, one bucket of each dtype is open at a time, or one for both.",
        wrapper.of_alternating_dtypes, level="extended",
        requires=("trains[mixed_dtypes]", "bucket_size_respected[unbounded]"),
        advice="Keep one bucket open for each dtype: closing it where the dtype changes makes many small ones."),
)
_LATER = (
    _overlap("overlaps_backward[after_no_sync]",
        "The backward pass that follows on passes under `no_sync` overlaps with communication like any other.",
        wrapper_extended.overlapping_under_no_sync, level="extended", requires=("no_sync", *_OVERLAPS),
        advice="The passes before were under `no_sync`: let hooks count nothing there, or begin to count anew."),
    _overlap("overlaps_backward[after_evaluation]",
        "A step overlaps with communication also where the model was in evaluation mode before.",
        having(draws.deep_or_frozen, evaluates=True), level="extended",
        requires=("trains[evaluation_between_steps]", *_OVERLAPS),
        advice="The model was in evaluation mode before: let `train()` bring back what `eval()` has taken away."),
)
_PROMISED: dict[str, tuple[Check, ...]] = {
    "naive_ddp": (replace(_ONCE, level="extended"),),
    "flat_ddp": (*_FLAT, _ONCE),
    "ddp_individual_parameters": (_OVERLAP, _EACH, _ONCE),
    "ddp_bucketed": (_OVERLAP, _ONCE, *_BUCKETS),
    "ddp": (_STARTS, _ONCE),
}
# fmt: on


def wrapper_checks(name: str) -> tuple[Check, ...]:
    """Return the checks of one of the wrappers."""
    promised = _PROMISED[name]
    return (*CORE, *promised, *EXTENDED, *(_LATER if _OVERLAP in promised else ()))
