"""Assertions about the state that ranks keep: together all of it once, and each about 1/N."""

import math

from conformance.checks.check import Violation
from conformance.checks.trial import Trial
from conformance.scenarios.scenario import Scenario

_ALIGNED = 128  # elements
_HALVES = 2


def state_is_sharded(trial: Trial) -> None:
    """Hold the ranks together to keeping the optimizer's state once, but for padding."""
    sizes = trial.expected.state_bytes
    full, held = sum(sizes.values()), _held(trial)
    if not full <= sum(held) <= full + padding(trial.scenario, sizes):
        everyone = all(bytes_ == full for bytes_ in held)
        raise Violation(
            f"The ranks hold {_each(held)} bytes of optimizer state, {sum(held)} in all; one unsharded optimizer has "
            f"{full}." + (" Every rank keeps the state of all parameters: nothing is sharded." if everyone else ""),
            "Give the inner optimizer only the parameters that the rank owns.",
        )


def state_is_balanced(trial: Trial) -> None:
    """Hold the state to being kept once, and the fullest rank to what list scheduling gives it (Graham, 1969)."""
    state_is_sharded(trial)
    scenario, sizes = trial.scenario, trial.expected.state_bytes
    parts = halves(scenario)
    full, most, held = sum(sizes.values()), largest_share(scenario, sizes, parts), _held(trial)
    if max(held) > most:
        largest = "the largest parameter" if parts == 1 else "one parameter of each half"
        raise Violation(
            f"Rank {held.index(max(held))} holds {max(held)} of {full} bytes of optimizer state (by rank: "
            f"{_each(held)}); an even share is {full / scenario.world_size:.0f}, and with {largest} on top {most:.0f}.",
            "Parameters differ in size (weights, biases): give each to the rank that has the fewest bytes so far, "
            "rather than to ranks in turn.",
        )


def _held(trial: Trial) -> list[int]:
    """Return the bytes of state by rank; where none has any, it is kept where nobody can look."""
    found = [seen.state_bytes for seen in trial.observations]
    if None in found or not any(found):
        where = f"On rank {found.index(None)} no torch optimizer" if None in found else "On no rank any optimizer state"
        raise Violation(
            f"{where} could be found in what get_sharded_optimizer returned, so its state cannot be measured.",
            "Keep the inner optimizer in an attribute of what get_sharded_optimizer returns.",
        )
    return [held for held in found if held is not None]


def halves(scenario: Scenario) -> int:
    """Return 2 for parameters in two halves, as two groups or frozen ones and others, each dealt out alone; else 1."""
    return 2 if scenario.schedule or len(scenario.optimizer.groups) == _HALVES else 1


def largest_share(scenario: Scenario, sizes: dict[str, int], parts: int = 1) -> float:
    """Return the most bytes of state that a balanced rank may hold: an even share, and of each part a parameter's."""
    return sum(sizes.values()) / scenario.world_size + parts * max(sizes.values())


def padding(scenario: Scenario, sizes: dict[str, int]) -> int:
    """Return the bytes that sharding by element may add to state of these sizes, by parameter.

    Each rank's part, of all parameters together or of each, may be filled up to a multiple of `_ALIGNED` elements:
    Megatron-LM does so for the speed of collectives.
    """
    elements = sum(math.prod(scenario.model.shapes[name]) for name in sizes)
    return _ALIGNED * scenario.world_size * len(sizes) * sum(sizes.values()) // max(1, elements)


def _each(held: list[int]) -> str:
    return ", ".join(map(str, held))
