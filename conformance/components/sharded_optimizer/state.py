"""Checks of what a sharded optimizer keeps: by rank about 1/N of the state, none of it twice, on some ranks nothing."""

import math

from conformance.checks.check import Trial, Violation, advising
from conformance.checks.training import training_equals_one_process
from conformance.scenarios.scenario import Scenario

_ALIGNED = 128  # elements


def state_is_sharded(trial: Trial) -> None:
    """Together the ranks hold the optimizer's state once: nothing is kept by all, nothing is missing."""
    sizes = trial.expected.state_bytes
    full, held = sum(sizes.values()), _held(trial)
    if not full <= sum(held) <= full + padding(trial.scenario, sizes):
        everyone = all(bytes_ == full for bytes_ in held)
        raise Violation(
            f"The ranks hold {_each(held)} bytes of optimizer state, {sum(held)} in all; one unsharded optimizer has "
            f"{full}." + (" Every rank keeps the state of all parameters: nothing is sharded." if everyone else ""),
            "Give the inner optimizer only the parameters that the rank owns.",
        )


def groups_are_sharded(trial: Trial) -> None:
    """The state of parameters that come in groups, given at once or added later, is held once, too."""
    with advising("Parameters come in groups here: deal out those of each group among the ranks, of later ones too."):
        state_is_sharded(trial)


def state_is_balanced(trial: Trial) -> None:
    """No rank holds more than its share of the optimizer's state plus one parameter's."""
    _hold_balance(
        trial,
        "Parameters differ in size (weights, biases): give each to the rank that has the fewest bytes so far, "
        "rather than to ranks in turn.",
    )


def two_groups_are_balanced(trial: Trial) -> None:
    """Each of two groups, the second of which may be added later, is dealt out evenly, and all is held once."""
    with advising("A parameter that gets another owner takes its state along: the rank that had it drops it."):
        state_is_sharded(trial)
    _hold_balance(
        trial,
        "Half of the parameters come in a second group, given at once or by `add_param_group`: deal these out, too, "
        "each to the rank that has the fewest bytes so far.",
        parts=2,
    )


def unfrozen_parameters_are_balanced(trial: Trial) -> None:
    """Parameters that are frozen when the optimizer is made are dealt out evenly, too: they may train later."""
    _hold_balance(
        trial,
        "Half of the parameters were frozen when the optimizer was made: deal them out by their size like the others.",
        parts=2,
    )


def groups_are_balanced_together(trial: Trial) -> None:
    """Also over several parameter groups together, no rank holds more than its share of state plus one parameter's."""
    groups = len(trial.scenario.optimizer.groups)
    groups_are_sharded(trial)
    _hold_balance(
        trial,
        f"There are {groups} parameter groups: carry on, from one to the next, with the bytes that each rank has so "
        "far. Where each group is dealt out from rank 0 anew, rank 0 gets the largest of every group.",
    )


def state_stays_sharded_after_loading(trial: Trial) -> None:
    """An optimizer that has loaded a `state_dict` keeps the state of the parameters that the rank owns, no more."""
    with advising("Keep of a `state_dict` what belongs to the rank's own parameters, and drop the rest."):
        state_is_sharded(trial)


def state_of_ranks_without_parameters(trial: Trial) -> None:
    """A rank that owns no parameter saves and loads `state_dict` like the others."""
    training_equals_one_process(trial)


def _hold_balance(trial: Trial, advice: str, *, parts: int = 1) -> None:
    """Hold the fullest rank to what list scheduling, in any order, gives it at most (Graham, 1969).

    Of so many parts, each may be dealt out for itself.
    """
    sizes = trial.expected.state_bytes
    full, ranks = sum(sizes.values()), trial.scenario.world_size
    most = largest_share(trial.scenario, sizes, parts)
    largest = "the largest parameter" if parts == 1 else "one parameter of each half"
    held = _held(trial)
    if max(held) > most:
        raise Violation(
            f"Rank {held.index(max(held))} holds {max(held)} of {full} bytes of optimizer state (by rank: "
            f"{_each(held)}); an even share is {full / ranks:.0f}, and with {largest} on top "
            f"{most:.0f}.",
            advice,
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
