"""Assertions about what a rank keeps: its share of parameters, gradients and optimizer state."""

import math

from conformance.checks.check import Violation
from conformance.checks.steps import hold_alive
from conformance.checks.trial import CaseTrial
from conformance.components.fsdp.case import FsdpCase
from conformance.scenarios.layers import BYTES

_MOMENTS = 2
_FREE = (
    "Free what was gathered after its use, and cut a part off by `clone`: a view, contiguous or not, keeps all of it."
)
_SHARE = "from its share of matrices and all vectors"
AT_ONCE = 7  # two to come, one in use, one not yet freed, and of some a copy: its parts, or in another dtype
LEFT = 3  # for the start of backward


def parameters_are_sharded(trial: CaseTrial) -> None:
    """Hold the bytes of parameters between steps to about 1/N of each matrix, and all vectors."""
    _hold(trial, "parameters_kept", share(trial.case), _FREE)


def nothing_whole_is_kept(trial: CaseTrial) -> None:
    """Hold the whole weights in memory after wrapping, and after a step, to three."""
    _hold_whole(
        trial,
        "whole_weights_kept_beside_parameters",
        LEFT,
        "They are not among `parameters()`: the module's own ones, perhaps, that are still held by it, by a copy of it "
        "or by a list, for their shapes. Give them another `data`, or keep shape and dtype alone.",
    )
    _hold_whole(
        trial,
        "whole_weights_kept_in_memory_after_a_step",
        LEFT,
        "Something holds what forward or backward has gathered or computed: an attribute, a list, a cache of what was "
        "gathered. Drop it after use.",
    )


def weights_are_freed(trial: CaseTrial) -> None:
    """Hold the whole parameters after forward to two, for the start of backward."""
    _hold_all_but_two(
        trial,
        "parameters_kept_after_forward",
        "Two weights may be whole then. Free a layer's whole weight when its forward is over, and gather it anew in "
        "backward.",
    )


def weights_are_freed_in_backward(trial: CaseTrial) -> None:
    """Hold the whole parameters after backward, before `fsdp_on_after_backward`, to two."""
    _hold_all_but_two(
        trial,
        "parameters_kept_after_backward",
        "Free a layer's whole weight in backward, as soon as its gradient is there. With all of them kept to the end, "
        "a rank needs the memory of the whole model after all.",
    )


def gathers_layer_by_layer(trial: CaseTrial) -> None:
    """Hold the whole weights in memory, when the first of ten layers has computed, to seven."""
    _hold_whole(
        trial,
        "whole_weights_kept_when_the_first_layer_has_computed",
        AT_ONCE,
        "Gather a layer's weight shortly before the layer computes, two layers ahead for instance, and free it after.",
    )


def memory_is_given_back(trial: CaseTrial) -> None:
    """Hold the whole weights in memory after forward to three: autograd does not keep them either."""
    _hold_whole(
        trial,
        "whole_weights_kept_in_memory_after_forward",
        LEFT,
        "Autograd keeps what a layer has computed with until backward, also where a parameter's `data` is another by "
        "then: a linear layer saves a transposed view of its weight. Give the memory back by "
        "`untyped_storage().resize_(0)` and gather into the same memory when the gradient of the layer's output "
        "arrives, as `fully_shard` does; or compute the layer under `torch.utils.checkpoint`.",
    )


def nothing_grows(trial: CaseTrial) -> None:
    """Hold the number of tensors alive after each step not to grow with every step."""
    for rank, answer in enumerate(trial.answers):
        hold_alive(rank, [int(answer[f"alive/{step}"]) for step in range(trial.case.steps)])


def gradients_are_sharded(trial: CaseTrial) -> None:
    """Hold the bytes of gradients after backward to those of the shards."""
    _hold(
        trial,
        "gradients_kept",
        share(trial.case),
        "Reduce-scatter the whole gradient, and keep a copy of this rank's part: a view keeps all of it.",
    )


def state_is_sharded(trial: CaseTrial) -> None:
    """Hold the bytes of the optimizer's state to those of the shards."""
    _hold(
        trial,
        "optimizer_state_kept",
        _MOMENTS * share(trial.case),
        what_is_allowed=f"twice what comes {_SHARE}, for two moments",
        advice="The wrapped model's `parameters()` must be its shards, from construction on.",
    )


def share(case: FsdpCase) -> int:
    """Return the most bytes a rank may keep: of a matrix, 1/N of its rows rounded up; of anything smaller, all."""
    smaller = sum(math.prod(shape) for shape in case.model.shapes.values() if len(shape) < 2)  # noqa: PLR2004  rows, columns
    parts = sum(math.ceil(rows / case.world_size) * columns for rows, columns in case.matrices)
    return BYTES[case.model.dtype] * (smaller + parts)


def two_whole(case: FsdpCase) -> int:
    """Return the bytes that the two largest matrices have beyond a rank's share of them."""
    beyond = sorted((rows - math.ceil(rows / case.world_size)) * columns for rows, columns in case.matrices)
    return BYTES[case.model.dtype] * sum(beyond[-2:])


def _hold(trial: CaseTrial, kept: str, most: int, advice: str, what_is_allowed: str = _SHARE) -> None:
    """Hold what each rank has kept, under a name among its answers, to a number of bytes."""
    what, _, when = kept.replace("_", " ").partition(" kept")
    for rank, answer in enumerate(trial.answers):
        seen, whose = int(answer[kept]), "torch.nn" if bool(answer["layers_of_torch"]) else "cs336_basics.model"
        if seen > most:
            raise Violation(
                f"Rank {rank} of {trial.case.world_size} keeps {seen} bytes of {what}{when}; expected at most {most}, "
                f"{what_is_allowed}. The layers are `Linear`, `Embedding` and `RMSNorm` of `{whose}`.",
                advice,
            )


def _hold_all_but_two(trial: CaseTrial, kept: str, advice: str) -> None:
    """Hold parameters to their shares, but for two that may be whole."""
    most = share(trial.case) + two_whole(trial.case)
    _hold(trial, kept, most, advice, f"{_SHARE}, and two whole weights")


def _hold_whole(trial: CaseTrial, kept: str, most: int, advice: str) -> None:
    """Hold whole weights to a number of them; on one rank, its own part is whole."""
    whole = trial.case.whole
    if trial.case.world_size > 1:
        _hold(trial, kept, sum(whole[-most:]), advice, f"as many as the {most} largest of {len(whole)} weights have")
