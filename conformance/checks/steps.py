"""Assertions about waiting, about what a run leaves behind, and about faults that ranks have noted."""

from collections.abc import Callable, Iterator
from itertools import pairwise

from conformance.checks.check import Violation
from conformance.checks.trial import CaseTrial, Trial
from conformance.checks.words import TENSOR_HOOK, WAIT, listed, never_awaited, step_words
from conformance.workload.numbers import Tensors

GENERATORS = {"torch": "torch's", "random": "Python's `random`", "numpy": "NumPy's"}


def results_are_waited_for(trial: Trial) -> None:
    """Hold all numbers to being finite, where results of collectives are NaN until a wait."""
    for moment, kept in _moments(trial):
        for rank, tensors in enumerate(kept):
            unset = [name for name, value in tensors.items() if not bool(value.isfinite().all())]
            if unset:
                raise Violation(
                    f"{moment} {listed(unset)} on rank {rank} is NaN or infinite: it was read or stored before "
                    "anybody waited for the collective that gives it, or computed so."
                    f"{never_awaited(trial.observations[rank].unawaited)}",
                    _why_unset(trial, rank, unset),
                )


def _why_unset(trial: Trial, rank: int, unset: list[str]) -> str:
    """Return what to do about what a rank has read too early: wait, or wait before it is stored elsewhere."""
    seen = trial.observations[rank]
    if seen.unawaited:
        return WAIT
    if set(unset) <= set(seen.tensor_hooks):
        return f"Looks like *a hook before the gradient is stored*: every handle was waited for. {TENSOR_HOOK}"
    return (
        "Every handle was waited for, but too late: what a collective gives was copied, or written to `.grad`, before. "
        "Call `wait()` first, then use the result."
    )


def _moments(trial: Trial) -> Iterator[tuple[str, list[Tensors]]]:
    """Yield, in the order of time, words for a moment and what each rank held then."""
    seen = trial.observations
    yield "Right after wrapping, the parameter", [one.wrapped for one in seen]
    for step in range(trial.scenario.steps):
        where = step_words(trial.scenario, step)
        yield f"After `on_after_backward` at {where}, the gradient of", [one.gradients(step) for one in seen]
        yield f"After {where}, the parameter", [one.parameters(step) for one in seen]


def nothing_grows(trial: Trial) -> None:
    """Hold later steps to the second one: no more hooks on parameters, collectives, tensors and handles."""
    last = trial.scenario.steps - 1
    for rank, seen in enumerate(trial.observations):
        launches = [sum(one.what == "launched" for one in happened) for happened in seen.happenings]
        for what, counts, remedy in (
            ("hooks on parameters", seen.hooks, "Register hooks once, when wrapping, not in each forward."),
            ("collectives launched", launches, "Clear what was kept for this step when it is over."),
        ):
            if counts[last] > counts[1]:
                raise Violation(f"On rank {rank}, {what} after each step: {', '.join(map(str, counts))}.", remedy)
    for rank, seen in enumerate(trial.observations):
        hold_alive(rank, seen.alive)


def hold_alive(rank: int, alive: list[int]) -> None:
    """Hold how many tensors and handles are alive after each step not to grow with each of them."""
    counts = alive[1:]
    if len(counts) > 1 and all(before < after for before, after in pairwise(counts)):
        raise Violation(
            f"On rank {rank}, tensors and handles of collectives alive after each step: {', '.join(map(str, alive))}.",
            "What was kept for a step (handles, flat copies, losses, whole weights) must be dropped when the step is "
            "over.",
        )


def global_generators_stay(trial: Trial | CaseTrial) -> None:
    """Hold the global generators of random numbers to the state that they had before."""
    for rank, moved in enumerate(_moved(trial)):
        if moved:
            raise Violation(
                f"On rank {rank}, a global generator of random numbers has another state afterwards: "
                f"{' and '.join(GENERATORS[name] for name in moved)}; expected all of them as they were."
            )


def _moved(trial: Trial | CaseTrial) -> list[list[str]]:
    """Return the names of the generators that have moved, by rank."""
    if isinstance(trial, Trial):
        return [list(seen.generators) for seen in trial.observations]
    return [[name for name in GENERATORS if bool(answer[f"moved/{name}"])] for answer in trial.answers]


def none_noted(fault: str, words: str, advice: str) -> Callable[[Trial], None]:
    """Return an assertion that holds a list of names in each rank's observation to being empty.

    Args:
        fault: the attribute of `Observation` that is this list.
        words: what it means; they may use {names}, {count} (of the names), {parameters} (of the model) and {scenario}.
        advice: what to do.
    """

    def hold(trial: Trial) -> None:
        parameters = len(trial.scenario.model.shapes)
        for rank, seen in enumerate(trial.observations):
            if noted := list(dict.fromkeys(getattr(seen, fault))):
                facts = {"names": listed(noted), "count": len(noted), "parameters": parameters}
                raise Violation(f"On rank {rank}, {words.format(**facts, scenario=trial.scenario)}", advice)

    return hold
