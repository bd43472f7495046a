"""Checks of communication: when collectives are launched and waited for, and whether steps leave anything behind.

Never of time. The last step is judged, once all has settled: an implementation may order its buckets in the first.
"""

from collections.abc import Iterator
from itertools import pairwise

from conformance.checks.check import WAIT, Trial, Violation, advising, launches, listed, never_awaited, step_words
from conformance.checks.traffic import exchanges
from conformance.protocol.messages import Happening
from conformance.scenarios.scenario import Scenario
from conformance.workload.numbers import Tensors


def overlaps_backward(trial: Trial) -> None:
    """Communication goes on during backward: launched before the last gradient exists, and not waited for at once.

    The first layer's gradients are computed last. Those of all other layers are ready by then, and on their way.
    """
    step = trial.scenario.steps - 1
    for rank, seen in enumerate(trial.observations):
        happened = _last_pass(seen.happenings[step])
        launched = launches(happened, trial.scenario)
        if not launched:
            raise Violation(
                f"On rank {rank} at {step_words(trial.scenario, step)}, no gradient was communicated at all."
            )
        last = next(at for at, one in enumerate(happened) if one.what == "reached" and one.layer == 0)
        launch = launched[0]
        if launch > last:
            raise Violation(
                f"On rank {rank} at {step_words(trial.scenario, step)}, no collective was launched while backward "
                f"was computing: the first one, {happened[launch].op}, came {_when(happened, launch)}, when the "
                f"gradients of {len(trial.scenario.model.layers) - 1} of {len(trial.scenario.model.layers)} layers "
                "had long been ready.",
                "Launch each all-reduce with `async_op=True` from a hook that runs when the gradient has been stored "
                "(`register_post_accumulate_grad_hook`), and wait in `on_after_backward`.",
            )
        if not any(_goes_on(happened, at) for at in launched if at < last):
            raise Violation(
                f"On rank {rank} at {step_words(trial.scenario, step)}, backward stands still for each collective that "
                f"it launches: the first one, {happened[launch].op}, is waited for before any further gradient is "
                "computed.",
                "In the hook, launch with `async_op=True` and keep the handle; call its `wait()` in "
                "`on_after_backward`.",
            )
        if any(one.op == "barrier" for one in happened[:last]):
            raise Violation(
                f"On rank {rank} at {step_words(trial.scenario, step)}, there is a barrier in backward: every rank "
                "stands still in it until the slowest has come.",
                "Leave out the barrier. Collectives wait for one another by themselves.",
            )
        early, least, count = _launched_in_time(happened, last, trial.scenario)
        if early < least:
            raise Violation(
                f"On rank {rank} at {step_words(trial.scenario, step)}, {early} of {count} exchanges of gradients "
                "began before those of the first layer were computed, though all but the first layer's had long been "
                f"ready; expected {least} at least.",
                "Launch each bucket as soon as its last gradient is there, not the first one alone: does what points "
                "to the next bucket move on?",
            )


def overlaps_after_no_sync(trial: Trial) -> None:
    """The backward pass that follows on those under `no_sync` overlaps with communication like any other."""
    with advising("The passes before were under `no_sync`: let hooks count nothing there, or begin to count anew."):
        overlaps_backward(trial)


def overlaps_after_evaluation(trial: Trial) -> None:
    """A step overlaps with communication also where the model was in evaluation mode before."""
    with advising("The model was in evaluation mode before: let `train()` bring back what `eval()` has taken away."):
        overlaps_backward(trial)


def _last_pass(happened: list[Happening]) -> list[Happening]:
    """Return what happened from the beginning of the last backward pass on."""
    return happened[max((at for at, one in enumerate(happened) if one.what == "began"), default=0) :]


def _launched_in_time(happened: list[Happening], last: int, scenario: Scenario) -> tuple[int, int, int]:
    """Return how many exchanges began before backward was at the first layer, how many had to, and how many there were.

    Another thread gets its turn when it pleases the interpreter: nothing more is asked of that. What is sent again is
    no matter of overlap, and not counted.
    """
    count = min(exchanges(happened, scenario), len(scenario.model.trainable))
    own = not any(happened[at].elsewhere for at in launches(happened, scenario))
    return exchanges(happened[:last], scenario), count - late_exchanges(scenario) if own else 0, count


def late_exchanges(scenario: Scenario) -> int:
    """Return how many exchanges may begin late: those with a gradient of the first layer, and one that lags behind."""
    return sum(name.startswith("layers.0.") for name in scenario.model.trainable) + 1


def starts_in_backward(trial: Trial) -> None:
    """Communication starts during backward; a bucket that holds the whole model may start with the last gradient.

    The models here are small: an implementation with buckets of a fixed, large size has one, which is full at the end.
    """
    step = trial.scenario.steps - 1
    steps = [_last_pass(seen.happenings[step]) for seen in trial.observations]
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
    return exchanges(happened, scenario) == 1 and launches(happened, scenario)[0] < returned


def _when(happened: list[Happening], launch: int) -> str:
    before = {one.what for one in happened[:launch]}
    if "returned" in before:
        return "only in `on_after_backward`"
    return "only at the very end of backward (queued behind it, or launched for the last gradient)"
