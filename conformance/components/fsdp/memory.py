"""Checks of what a rank keeps under fully sharded data parallelism: its share of parameters, gradients and state."""

import math
from itertools import pairwise

from conformance.checks.check import Violation
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
    """Between steps, a rank keeps about 1/N of each matrix; vectors may be on every rank."""
    _hold(trial, "parameters_kept", share(trial.case), _FREE)


def nothing_whole_is_kept(trial: CaseTrial) -> None:
    """After wrapping, and after a step, whole weights are gone from memory, but for three, wherever they were kept."""
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
    """When forward is over, whole weights are freed: a rank keeps two of them at most, for the start of backward."""
    _hold_all_but_two(
        trial,
        "parameters_kept_after_forward",
        "Two weights may be whole then. Free a layer's whole weight when its forward is over, and gather it anew in "
        "backward.",
    )


def weights_are_freed_in_backward(trial: CaseTrial) -> None:
    """When backward is over, before `fsdp_on_after_backward`, a rank keeps two whole weights at most."""
    _hold_all_but_two(
        trial,
        "parameters_kept_after_backward",
        "Free a layer's whole weight in backward, as soon as its gradient is there. With all of them kept to the end, "
        "a rank needs the memory of the whole model after all.",
    )


def gathers_layer_by_layer(trial: CaseTrial) -> None:
    """When the first of ten layers has computed in forward, seven whole weights are in memory at most."""
    _hold_whole(
        trial,
        "whole_weights_kept_when_the_first_layer_has_computed",
        AT_ONCE,
        "Gather a layer's weight shortly before the layer computes, two layers ahead for instance, and free it after.",
    )


def memory_is_given_back_in_evaluation_mode(trial: CaseTrial) -> None:
    """Also where a model trains in evaluation mode, as with dropout turned off, whole weights' memory is free again."""
    memory_of_weights_is_given_back(trial)


def memory_of_weights_is_given_back(trial: CaseTrial) -> None:
    """When forward is over, the memory of whole weights is free, but for three: autograd does not keep it either."""
    _hold_whole(
        trial,
        "whole_weights_kept_in_memory_after_forward",
        LEFT,
        "Autograd keeps what a layer has computed with until backward, also where a parameter's `data` is another by "
        "then: a linear layer saves a transposed view of its weight. Give the memory back by "
        "`untyped_storage().resize_(0)` and gather into the same memory when the gradient of the layer's output "
        "arrives, as `fully_shard` does; or compute the layer under `torch.utils.checkpoint`.",
    )


def memory_does_not_grow(trial: CaseTrial) -> None:
    """Steps leave nothing behind: the tensors alive do not become more with each of them."""
    for rank, answer in enumerate(trial.answers):
        counts = [int(answer[f"alive/{step}"]) for step in range(trial.case.steps)]
        if all(before < after for before, after in pairwise(counts[1:])):
            raise Violation(
                f"On rank {rank}, tensors alive after each step: {', '.join(map(str, counts))}.",
                "What was kept for a step (handles, whole weights, gradients) must be dropped when the step is over.",
            )


def gradients_are_sharded(trial: CaseTrial) -> None:
    """After backward, a rank keeps the gradients of its shards alone."""
    _hold(
        trial,
        "gradients_kept",
        share(trial.case),
        "Reduce-scatter the whole gradient, and keep a copy of this rank's part: a view keeps all of it.",
    )


def optimizer_state_is_sharded(trial: CaseTrial) -> None:
    """The optimizer's state on a rank is that of its shards alone."""
    _hold(
        trial,
        "optimizer_state_kept",
        _MOMENTS * share(trial.case),
        what_is_allowed=f"twice what comes {_SHARE}, for two moments",
        advice="The wrapped model's `parameters()` must be its shards, from construction on.",
    )


def uneven_parameters_are_sharded(trial: CaseTrial) -> None:
    """A matrix whose rows the ranks cannot share evenly is sharded like any other, as a vocabulary of 50257 rows."""
    parameters_are_sharded(trial)


def frozen_parameters_are_sharded(trial: CaseTrial) -> None:
    """A matrix that does not train is sharded like any other, as where few parameters are trained of a large model."""
    parameters_are_sharded(trial)


def share(case: FsdpCase) -> int:
    """Return the most bytes a rank may keep: of a matrix, 1/N of its rows rounded up; of anything smaller, all."""
    shapes = case.scenario.model.shapes.values()
    shares = (math.ceil(s[0] / case.world_size) * s[1] if len(s) > 1 else math.prod(s) for s in shapes)
    return BYTES[case.dtype] * sum(shares)


def two_whole(case: FsdpCase) -> int:
    """Return the bytes that the two largest matrices have beyond a rank's share of them."""
    matrices = [s for s in case.scenario.model.shapes.values() if len(s) > 1]
    beyond = sorted((rows - math.ceil(rows / case.world_size)) * columns for rows, columns in matrices)
    return BYTES[case.dtype] * sum(beyond[-2:])


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
