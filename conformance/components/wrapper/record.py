"""The data-parallel wrappers: the checks of each, in the order in which they run, and their records."""

from dataclasses import replace
from functools import partial

from conformance.checks.check import Check
from conformance.checks.traffic import sent_once
from conformance.components.component import Component, training_numbers
from conformance.components.wrapper import collectives
from conformance.components.wrapper.aspects import ASPECTS
from conformance.components.wrapper.core_table import CORE
from conformance.components.wrapper.extended_table import EXTENDED
from conformance.components.wrapper.overlap import overlaps_backward, starts_in_backward
from conformance.diagnosis.gradients import diagnose
from conformance.protocol.messages import Observation
from conformance.scenarios.scenario import Scenario
from conformance.strategies import communication as draws
from conformance.strategies import wrapper
from conformance.strategies.building_blocks import having
from conformance.submissions.contract import Contract, Function

_OVERLAPS = ("overlaps_backward",)
_check = partial(Check, theme="communication", requires=("runs_to_the_end",))
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
    "Each gradient is sent once in a step: no kind of collective carries more bytes than all gradients and padding.",
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
        draws.overlapping_under_no_sync, level="extended", requires=("no_sync", *_OVERLAPS),
        advice="The passes before were under `no_sync`: let hooks count nothing there, or begin to count anew."),
    _overlap("overlaps_backward[after_evaluation]",
        "A step overlaps with communication also where the model was in evaluation mode before.",
        having(draws.deep_or_frozen, evaluates=True), level="extended",
        requires=("trains[evaluation_between_steps]", *_OVERLAPS),
        advice="The model was in evaluation mode before: let `train()` bring back what `eval()` has taken away."),
)
# fmt: on


def _wrapper(
    name: str, about: str, *promised: Check, get: tuple[str, ...] = (), batch_start: bool = False
) -> Component:
    """Return the record of a wrapper; `promised` are its own checks, `get` further parameters of its `get_...`."""
    called_with = ("ddp_model", "optimizer")
    return Component(
        contract=Contract(
            name,
            "wrapper",
            Function(f"get_{name}", ("module", *get)),
            Function(f"{name}_on_after_backward", called_with),
            Function(f"{name}_on_train_batch_start", called_with) if batch_start else None,
        ),
        about=about,
        exercise="conformance.ranks.train:train",
        numbers=training_numbers,
        simplest=Scenario(world_size=1),
        answer=Observation,
        checks=(*CORE, *promised, *EXTENDED, *(_LATER if _OVERLAP in promised else ())),
        aspects=ASPECTS[name],
        start="initial_broadcast",
        carries=("runs_to_the_end", "trains[one_rank]", "gradients_averaged"),
        diagnose=diagnose,
    )


WRAPPERS = (
    _wrapper("naive_ddp", "Averages each gradient after backward, one by one.", replace(_ONCE, level="extended")),
    _wrapper("flat_ddp", "Averages all gradients after backward, as one flat tensor per dtype.", *_FLAT, _ONCE),
    _wrapper(
        "ddp_individual_parameters",
        "Averages each gradient as soon as backward has computed it.",
        *(_OVERLAP, _EACH, _ONCE),
    ),
    _wrapper(
        "ddp_bucketed",
        "Averages buckets of gradients, each as soon as backward has filled it.",
        *(_OVERLAP, _ONCE, *_BUCKETS),
        get=("bucket_size_mb",),
        batch_start=True,
    ),
    _wrapper("ddp", "Averages gradients while backward computes others, in whatever way.", _STARTS, _ONCE),
)
