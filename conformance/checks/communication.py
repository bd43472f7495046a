"""Checks of communication: when collectives are launched in backward, and how many. Never of time.

A step is judged once it has settled (the last one): an implementation may order its buckets in the first.
"""

import math
from collections import Counter

from conformance.checks.check import Trial, Violation, step_words
from conformance.observation import Happening
from conformance.scenario import BYTES, Scenario

_MIB = 2**20


def overlaps_backward(trial: Trial) -> None:
    """Communication starts during backward: a collective is launched before the first layer's gradients exist.

    The first layer's gradients are computed last. Those of all other layers are ready by then, and on their way.
    """
    step = trial.scenario.steps - 1
    for rank, seen in enumerate(trial.observations):
        happened = seen.happenings[step]
        launch = next((at for at, one in enumerate(happened) if _carries_gradients(one, trial.scenario)), None)
        if launch is None:
            raise Violation(
                f"On rank {rank} at {step_words(trial.scenario, step)}, no gradient was communicated at all."
            )
        last = next(at for at, one in enumerate(happened) if one.what == "reached" and one.layer == 0)
        if launch > last:
            raise Violation(
                f"On rank {rank} at {step_words(trial.scenario, step)}, no collective was launched while backward "
                f"was computing: the first one, {happened[launch].op}, came {_when(happened, launch)}, when the "
                f"gradients of {len(trial.scenario.model.layers) - 1} of {len(trial.scenario.model.layers)} layers "
                "had long been ready.",
                "Launch each all-reduce with `async_op=True` from a hook that runs when the gradient has been stored "
                "(`register_post_accumulate_grad_hook`), and wait in `on_after_backward`.",
            )


def starts_in_backward(trial: Trial) -> None:
    """Communication starts during backward; a bucket that holds the whole model may start with the last gradient.

    The models here are small: an implementation with buckets of a fixed, large size has one, which is full at the end.
    """
    step = trial.scenario.steps - 1
    steps = [seen.happenings[step] for seen in trial.observations]
    if not all(_is_one_bucket_in_backward(happened, trial.scenario) for happened in steps):
        overlaps_backward(trial)


def _is_one_bucket_in_backward(happened: list[Happening], scenario: Scenario) -> bool:
    returned = next(at for at, one in enumerate(happened) if one.what == "returned")
    launches = [at for at, one in enumerate(happened) if _carries_gradients(one, scenario)]
    return gradient_collectives(happened, scenario) == 1 and launches[0] < returned


def _when(happened: list[Happening], launch: int) -> str:
    before = {one.what for one in happened[:launch]}
    if "returned" in before:
        return "only in `on_after_backward`"
    return "only at the very end of backward (queued behind it, or launched for the last gradient)"


def one_collective_per_dtype(trial: Trial) -> None:
    """All gradients travel together: one collective per dtype, here one."""
    step = trial.scenario.steps - 1
    for rank, seen in enumerate(trial.observations):
        count = gradient_collectives(seen.happenings[step], trial.scenario)
        if count != 1:
            raise Violation(
                f"On rank {rank} at {step_words(trial.scenario, step)}, {_times(count)} for "
                f"{len(trial.scenario.model.trainable)} parameters of one dtype; expected one, on a flat tensor of "
                "all.",
                "Concatenate all gradients, reduce once, and copy the parts back.",
            )


def bucket_size_respected(trial: Trial) -> None:
    """`bucket_size_mb` decides how many collectives there are: many with small buckets, one with a large one."""
    step = trial.scenario.steps - 1
    sizes = _sizes(trial.scenario)
    fewest, most = expected_exchanges(trial.scenario)
    capacity = (trial.scenario.bucket_size_mb or 0.0) * _MIB
    for rank, seen in enumerate(trial.observations):
        count = gradient_collectives(seen.happenings[step], trial.scenario)
        if not fewest <= count <= most:
            raise Violation(
                f"With bucket_size_mb={trial.scenario.bucket_size_mb:.3g} ({capacity:.0f} bytes) and parameters of "
                f"{', '.join(map(str, sizes))} bytes, {_times(count)} on rank {rank} at "
                f"{step_words(trial.scenario, step)}; expected {fewest} to {most}.",
                "A bucket is full when the next gradient would take it over bucket_size_mb * 1024 * 1024 bytes; count "
                "`p.numel() * p.element_size()`, and start the next bucket from zero.",
            )


def unbounded_bucket(trial: Trial) -> None:
    """`bucket_size_mb=None` means one bucket of unbounded size: training is right, with one collective."""
    step = trial.scenario.steps - 1
    for rank, seen in enumerate(trial.observations):
        count = gradient_collectives(seen.happenings[step], trial.scenario)
        if count != 1:
            raise Violation(
                f"With bucket_size_mb=None, {_times(count)} on rank {rank} at {step_words(trial.scenario, step)}; "
                "expected one for everything.",
                "None means that no bucket is ever full before the last gradient is in it.",
            )


def expected_exchanges(scenario: Scenario) -> tuple[int, int]:
    """Return how few and how many exchanges of gradients a bucket size allows, however buckets are filled.

    A bucket may be closed before or after the gradient that takes it over its size, so that it holds at most that size
    and one parameter; two buckets next to one another hold more than the size.
    """
    if scenario.bucket_size_mb is None:
        return 1, 1
    sizes, capacity = _sizes(scenario), scenario.bucket_size_mb * _MIB
    fewest = math.ceil(sum(sizes) / (capacity + max(sizes)))
    return fewest, min(len(sizes), math.floor(2 * sum(sizes) / capacity) + 2)


def _sizes(scenario: Scenario) -> list[int]:
    """Return the bytes of each gradient."""
    spec = scenario.model
    return [BYTES[spec.dtypes[name]] * math.prod(spec.shapes[name]) for name in spec.trainable]


def gradient_collectives(happened: list[Happening], scenario: Scenario) -> int:
    """Return how many times gradients were exchanged.

    An exchange may take two operations (reduce-scatter, then all-gather), so the most frequent one is counted; traffic
    of another dtype, such as flags of used parameters, is not.
    """
    ops = Counter(one.op for one in happened if _carries_gradients(one, scenario))
    return max(ops.values(), default=0)


def _carries_gradients(one: Happening, scenario: Scenario) -> bool:
    return one.what == "launched" and one.dtype in scenario.model.dtypes.values() and one.bytes > 0


def _times(count: int) -> str:
    return {0: "no collective was launched", 1: "one collective was launched"}.get(
        count, f"{count} collectives were launched"
    )
