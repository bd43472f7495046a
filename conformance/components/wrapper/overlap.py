"""Assertions about overlap: whether gradients are communicated while backward computes.

They look at the order of events, never at time. The last step is judged: an implementation may order its buckets in
the first.
"""

from conformance.checks.check import Violation
from conformance.checks.traffic import exchanges, expected_exchanges, last_step, launches
from conformance.checks.trial import Trial
from conformance.protocol.messages import Happening, Observation
from conformance.scenarios.scenario import Scenario

_FROM_A_HOOK = (
    "Launch each all-reduce with `async_op=True` from a hook that runs when the gradient has been stored "
    "(`register_post_accumulate_grad_hook`), and wait in `on_after_backward`."
)
_USE = (
    "Put what the collective of a gradient gives into its `.grad`, and communicate it by nothing else after backward."
)
_NEVER_FULL = (
    "All gradients travel in one bucket, which is never full before the end: the bytes of what is in it must add up "
    "(`p.numel() * p.element_size()`), and be compared with `bucket_size_mb * 1024 * 1024`."
)


def overlaps_backward(trial: Trial) -> None:
    """Hold collectives to being launched before the last gradient exists, and not waited for at once.

    The first layer's gradients are computed last. Those of all other layers are ready by then, and on their way.
    """
    scenario, layers = trial.scenario, len(trial.scenario.model.layers)
    for rank, seen in enumerate(trial.observations):
        happened = _last_pass(seen)
        where, launched = f"On rank {rank} at {last_step(scenario)}", launches(happened, scenario)
        if not launched:
            raise Violation(f"{where}, no gradient was communicated at all.")
        last = next(at for at, one in enumerate(happened) if one.what == "reached" and one.layer == 0)
        launch = launched[0]
        if launch > last:
            raise Violation(
                f"{where}, no collective was launched while backward was computing: the first one, "
                f"{happened[launch].op}, came {_when(happened, launch)}, when the gradients of {layers - 1} of "
                f"{layers} layers had long been ready.",
                _NEVER_FULL if _in_one_bucket(happened, scenario) else _FROM_A_HOOK,
            )
        if not any(_goes_on(happened, at) for at in launched if at < last):
            raise Violation(
                f"{where}, backward stands still for each collective that it launches: the first one, "
                f"{happened[launch].op}, is waited for before any further gradient is computed.",
                "In the hook, launch with `async_op=True` and keep the handle; call its `wait()` in "
                "`on_after_backward`.",
            )
        if any(one.op == "barrier" for one in happened[:last]):
            raise Violation(
                f"{where}, there is a barrier in backward: every rank stands still in it until the slowest has come.",
                "Leave out the barrier. Collectives wait for one another by themselves.",
            )
        early = exchanges(happened[:last], scenario)
        count = min(exchanges(happened, scenario), len(scenario.model.trainable))  # the rest is sent again
        least = 0 if any(happened[at].elsewhere for at in launched) else count - _may_be_late(scenario)
        if early < least:  # nothing is asked of other threads, which get their turn when it pleases the interpreter
            raise Violation(
                f"{where}, {early} of {count} exchanges of gradients began before those of the first layer were "
                f"computed, though all but the first layer's had long been ready; expected {least} at least.",
                "Launch each bucket as soon as its last gradient is there, not the first one alone: does what points "
                "to the next bucket move on?",
            )
        if scenario.spoiled and least > 0:
            _hold_used(where, seen, min(early, count))


def _hold_used(where: str, seen: Observation, exchanged: int) -> None:
    """Hold as many gradients to coming from collectives of backward as there were exchanges of gradients in it."""
    if len(seen.spoiled) < exchanged:
        raise Violation(
            f"{where}, {exchanged} exchanges of gradients began before those of the first layer were computed. When "
            f"the collectives of backward gave NaN, {len(seen.spoiled)} gradients were NaN after `on_after_backward`; "
            f"expected {exchanged} at least. The submission launches collectives whose results it does not use.",
            _USE,
        )


def starts_in_backward(trial: Trial) -> None:
    """Hold communication to overlap with backward, but for one bucket of all gradients, launched in backward.

    The models here are small: an implementation with buckets of a fixed, large size has one, which is full at the end.
    """
    for happened in map(_last_pass, trial.observations):
        returned = next(at for at, one in enumerate(happened) if one.what == "returned")
        one_bucket = exchanges(happened, trial.scenario) == 1
        if not (one_bucket and launches(happened, trial.scenario)[0] < returned):
            overlaps_backward(trial)


def _last_pass(seen: Observation) -> list[Happening]:
    """Return what happened in the last step, from the beginning of its last backward pass on."""
    happened = seen.happenings[-1]
    return happened[max((at for at, one in enumerate(happened) if one.what == "began"), default=0) :]


def _in_one_bucket(happened: list[Happening], scenario: Scenario) -> bool:
    """Whether there was one exchange, where the bucket size asks for several."""
    return exchanges(happened, scenario) == 1 < expected_exchanges(scenario)[0]


def _may_be_late(scenario: Scenario) -> int:
    """Return how many exchanges may begin late: those with a gradient of the first layer, and one that lags behind."""
    return sum(name.startswith("layers.0.") for name in scenario.model.trainable) + 1


def _goes_on(happened: list[Happening], launch: int) -> bool:
    """Whether backward computed something between a launch and the first wait for it; waits are seen under a gate."""
    for one in happened[launch:]:
        if one.what == "waited" and one.number == happened[launch].number:
            return False
        if one.what == "reached":
            return True
    return False


def _when(happened: list[Happening], launch: int) -> str:
    if any(one.what == "returned" for one in happened[:launch]):
        return "only in `on_after_backward`"
    return "only at the very end of backward (queued behind it, or launched for the last gradient)"
