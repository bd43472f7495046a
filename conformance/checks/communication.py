"""Checks of communication: when collectives are launched and waited for, and how many there are. Never of time.

A step is judged once it has settled (the last one): an implementation may order its buckets in the first.
"""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from conformance.checks.check import (
    WAIT,
    Trial,
    Violation,
    carries_gradients,
    listed,
    never_awaited,
    step_words,
)
from conformance.data import Tensors
from conformance.layers import BYTES
from conformance.observation import Happening
from conformance.scenario import Scenario

_MIB = 2**20


def overlaps_backward(trial: Trial) -> None:
    """Communication goes on during backward: launched before the last gradient exists, and not waited for at once.

    The first layer's gradients are computed last. Those of all other layers are ready by then, and on their way.
    """
    step = trial.scenario.steps - 1
    for rank, seen in enumerate(trial.observations):
        happened = seen.happenings[step]
        launch = next((at for at, one in enumerate(happened) if carries_gradients(one, trial.scenario)), None)
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
        launches = (at for at in range(launch, last) if carries_gradients(happened[at], trial.scenario))
        if not any(_goes_on(happened, at) for at in launches):
            raise Violation(
                f"On rank {rank} at {step_words(trial.scenario, step)}, backward stands still for each collective that "
                f"it launches: the first one, {happened[launch].op}, is waited for before any further gradient is "
                "computed.",
                "In the hook, launch with `async_op=True` and keep the handle; call its `wait()` in "
                "`on_after_backward`.",
            )


def starts_in_backward(trial: Trial) -> None:
    """Communication starts during backward; a bucket that holds the whole model may start with the last gradient.

    The models here are small: an implementation with buckets of a fixed, large size has one, which is full at the end.
    """
    step = trial.scenario.steps - 1
    steps = [seen.happenings[step] for seen in trial.observations]
    if not all(_is_one_bucket_in_backward(happened, trial.scenario) for happened in steps):
        overlaps_backward(trial)


def _goes_on(happened: list[Happening], launch: int) -> bool:
    """Whether backward computed something between a launch and the first wait for it; waits are seen under a gate."""
    for one in happened[launch:]:
        if one.what == "waited" and one.number == happened[launch].number:
            return False
        if one.what == "reached":
            return True
    return False


def results_are_waited_for(trial: Trial) -> None:
    """What a collective gives is used only after somebody has waited for it.

    Here results arrive with the wait, and not before; who reads them too early finds NaN, every time.
    """
    for moment, kept in _moments(trial):
        for rank, tensors in enumerate(kept):
            unset = [name for name, value in tensors.items() if not bool(value.isfinite().all())]
            if unset:
                raise Violation(
                    f"{moment} {listed(unset)} on rank {rank} is NaN or infinite: it was read before anybody waited "
                    "for the collective that gives it, or computed so."
                    f"{never_awaited(trial.observations[rank].unawaited)}",
                    WAIT,
                )


def _moments(trial: Trial) -> Iterator[tuple[str, list[Tensors]]]:
    """Yield, in the order of time, words for a moment and what each rank held then."""
    seen = trial.observations
    yield "Right after wrapping, the parameter", [one.wrapped for one in seen]
    for step in range(trial.scenario.steps):
        where = step_words(trial.scenario, step)
        yield f"After `on_after_backward` at {where}, the gradient of", [one.gradients(step) for one in seen]
        yield f"After {where}, the parameter", [one.parameters(step) for one in seen]


def work_does_not_grow(trial: Trial) -> None:
    """Later steps do what the second one did: no more hooks on parameters, and no more collectives."""
    last = trial.scenario.steps - 1
    for rank, seen in enumerate(trial.observations):
        launches = [sum(one.what == "launched" for one in happened) for happened in seen.happenings]
        for what, counts, remedy in (
            ("hooks on parameters", seen.hooks, "Register hooks once, when wrapping, not in each forward."),
            ("collectives launched", launches, "Clear what was kept for this step when it is over."),
        ):
            if counts[last] > counts[1]:
                raise Violation(f"On rank {rank}, {what} after each step: {', '.join(map(str, counts))}.", remedy)


def memory_does_not_grow(trial: Trial) -> None:
    """Steps leave nothing behind: the tensors and handles of collectives alive do not become more with each of them."""
    for rank, seen in enumerate(trial.observations):
        counts = seen.alive[1:]
        if len(counts) > 1 and all(before < after for before, after in pairwise(counts)):
            raise Violation(
                f"On rank {rank}, tensors and handles of collectives alive after each step: "
                f"{', '.join(map(str, seen.alive))}.",
                "What was kept for a step (handles, flat copies, losses) must be dropped when the step is over.",
            )


def _is_one_bucket_in_backward(happened: list[Happening], scenario: Scenario) -> bool:
    returned = next(at for at, one in enumerate(happened) if one.what == "returned")
    launches = [at for at, one in enumerate(happened) if carries_gradients(one, scenario)]
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
                f"{step_words(trial.scenario, step)}; expected {_span(fewest, most)}.",
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
    and one parameter; two buckets next to one another hold more than the size, but for one more that is sent early.
    """
    sizes = _sizes(scenario)
    capacity = math.inf if scenario.bucket_size_mb is None else scenario.bucket_size_mb * _MIB
    if sum(sizes) <= capacity:
        return 1, 1
    fewest = math.ceil(sum(sizes) / (capacity + max(sizes)))
    return fewest, min(len(sizes), 2 * math.ceil(sum(sizes) / capacity))


def _sizes(scenario: Scenario) -> list[int]:
    """Return the bytes of each gradient."""
    spec = scenario.model
    return [BYTES[spec.dtypes[name]] * math.prod(spec.shapes[name]) for name in spec.trainable]


def gradient_collectives(happened: list[Happening], scenario: Scenario) -> int:
    """Return how many times gradients were exchanged.

    An exchange may take two operations (reduce-scatter, then all-gather), so the most frequent one is counted; traffic
    of another dtype, such as flags of used parameters, is not.
    """
    ops = Counter(one.op for one in happened if carries_gradients(one, scenario))
    return max(ops.values(), default=0)


def _span(fewest: int, most: int) -> str:
    return str(most) if fewest == most else f"{fewest} to {most}"


def _times(count: int) -> str:
    return {0: "no collective was launched", 1: "one collective was launched"}.get(
        count, f"{count} collectives were launched"
    )
