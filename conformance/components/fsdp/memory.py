"""Assertions about what a rank keeps: its share of parameters, gradients and optimizer state."""

import math
from collections.abc import Iterator

from conformance.checks.check import Violation
from conformance.checks.steps import hold_alive
from conformance.checks.trial import CaseTrial
from conformance.components.fsdp.case import FsdpCase
from conformance.scenarios.layers import BYTES

_SHARE = "from its share of matrices and all vectors"
_AND_TWO = f"{_SHARE}, and two whole weights"
_UNSHARDED = (
    "Nothing is sharded: `parameters()` have all elements of the model on every rank. When wrapping, put this rank's "
    "part of each weight in its place."
)
_CUT_OFF = (
    "Free what was gathered after its use, and cut a part off by `clone`: a view, contiguous or not, keeps all of it."
)
AT_ONCE = 7  # two to come, one in use, one not yet freed, and of some a copy: its parts, or in another dtype
LEFT = 3  # for the start of backward


def parameters_are_sharded(trial: CaseTrial) -> None:
    """Hold the bytes of parameters between steps to about 1/N of each matrix, and all vectors."""
    for excess in _beyond(trial, "parameters_kept", share(trial.case)):
        whole = sum(math.prod(shape) for shape in trial.case.model.shapes.values())
        unsharded = all(answer["elements_of_parameters"] >= whole for answer in trial.answers)
        raise Violation(excess, _UNSHARDED if unsharded else _CUT_OFF)


def nothing_whole_is_kept(trial: CaseTrial) -> None:
    """Hold the whole weights in memory after wrapping, and after a step, to three."""
    for excess in _whole_beyond(trial, "beside_parameters", LEFT):
        raise Violation(
            excess,
            "They are not among `parameters()`: the module's own ones, perhaps, that are still held by it, by a copy "
            "of it or by a list, for their shapes. Give them another `data`, or keep shape and dtype alone.",
        )
    for excess in _whole_beyond(trial, "in_memory_after_a_step", LEFT):
        raise Violation(
            excess,
            "Something holds what forward or backward has gathered or computed: an attribute, a list, a cache of what "
            "was gathered. Drop it after use.",
        )


def weights_are_freed(trial: CaseTrial) -> None:
    """Hold the whole parameters after forward to two, for the start of backward."""
    for excess in _beyond(trial, "parameters_kept_after_forward", with_two_whole(trial.case), _AND_TWO):
        raise Violation(
            excess,
            "Two weights may be whole then. Free a layer's whole weight when its forward is over, and gather it anew "
            "in backward.",
        )


def weights_are_freed_in_backward(trial: CaseTrial) -> None:
    """Hold the whole parameters after backward, before `fsdp_on_after_backward`, to two."""
    for excess in _beyond(trial, "parameters_kept_after_backward", with_two_whole(trial.case), _AND_TWO):
        raise Violation(
            excess,
            "Free a layer's whole weight in backward, as soon as its gradient is there. With all of them kept to the "
            "end, a rank needs the memory of the whole model after all.",
        )


def gathers_layer_by_layer(trial: CaseTrial) -> None:
    """Hold the whole weights in memory, when the first of ten layers has computed, to seven."""
    for excess in _whole_beyond(trial, "when_the_first_layer_has_computed", AT_ONCE):
        raise Violation(
            excess,
            "Gather a layer's weight shortly before the layer computes, two layers ahead for instance, and free it "
            "after.",
        )


def memory_is_given_back(trial: CaseTrial) -> None:
    """Hold the whole weights in memory after forward to three: autograd does not keep them either."""
    for excess in _whole_beyond(trial, "in_memory_after_forward", LEFT):
        raise Violation(
            excess,
            "Autograd keeps what a layer has computed with until backward, also where a parameter's `data` is another "
            "by then: a linear layer saves a transposed view of its weight. Give the memory back by "
            "`untyped_storage().resize_(0)` and gather into the same memory when the gradient of the layer's output "
            "arrives, as `fully_shard` does; or compute the layer under `torch.utils.checkpoint`.",
        )


def nothing_grows(trial: CaseTrial) -> None:
    """Hold the number of tensors alive after each step not to grow with every step."""
    for rank, answer in enumerate(trial.answers):
        hold_alive(rank, [int(answer[f"alive/{step}"]) for step in range(trial.case.steps)])


def gradients_are_sharded(trial: CaseTrial) -> None:
    """Hold the bytes of gradients after backward to those of the shards."""
    for excess in _beyond(trial, "gradients_kept", share(trial.case)):
        raise Violation(
            excess, "Reduce-scatter the whole gradient, and keep a copy of this rank's part: a view keeps all of it."
        )


def state_is_sharded(trial: CaseTrial) -> None:
    """Hold the bytes of the optimizer's state to twice those of the shards, for two moments."""
    allowed = f"twice what comes {_SHARE}, for two moments"
    for excess in _beyond(trial, "optimizer_state_kept", 2 * share(trial.case), allowed):
        raise Violation(excess, "The wrapped model's `parameters()` must be its shards, from construction on.")


def share(case: FsdpCase) -> int:
    """Return the most bytes a rank may keep: of a matrix, 1/N of its rows rounded up; of anything smaller, all."""
    smaller = sum(math.prod(shape) for shape in case.model.shapes.values() if len(shape) < 2)  # noqa: PLR2004  rows, columns
    parts = sum(math.ceil(rows / case.world_size) * columns for rows, columns in case.matrices)
    return BYTES[case.model.dtype] * (smaller + parts)


def with_two_whole(case: FsdpCase) -> int:
    """Return the most bytes a rank may keep where the two largest matrices may be whole."""
    beyond = sorted((rows - math.ceil(rows / case.world_size)) * columns for rows, columns in case.matrices)
    return share(case) + BYTES[case.model.dtype] * sum(beyond[-2:])


def _beyond(trial: CaseTrial, kept: str, most: int, allowed: str = _SHARE) -> Iterator[str]:
    """Yield words for each rank that has kept more than a number of bytes, under a name among its answers."""
    what, _, when = kept.replace("_", " ").partition(" kept")
    for rank, answer in enumerate(trial.answers):
        seen, whose = int(answer[kept]), "torch.nn" if bool(answer["layers_of_torch"]) else "cs336_basics.model"
        if seen > most:
            yield (
                f"Rank {rank} of {trial.case.world_size} keeps {seen} bytes of {what}{when}; expected at most {most}, "
                f"{allowed}. The layers are `Linear`, `Embedding` and `RMSNorm` of `{whose}`."
            )


def _whole_beyond(trial: CaseTrial, moment: str, most: int) -> Iterator[str]:
    """Yield words for each rank with more whole weights than this number; on one rank, its own part is whole."""
    whole = trial.case.whole
    allowed = f"as many as the {most} largest of {len(whole)} weights have"
    if trial.case.world_size > 1:
        yield from _beyond(trial, f"whole_weights_kept_{moment}", sum(whole[-most:]), allowed)
