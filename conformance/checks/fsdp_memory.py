"""Checks of what a rank keeps under fully sharded data parallelism: its share of parameters, gradients and state."""

import math

from conformance.cases import FsdpCase
from conformance.checks.check import CaseTrial, Violation
from conformance.layers import BYTES

_MOMENTS = 2


def parameters_are_sharded(trial: CaseTrial) -> None:
    """Between steps, a rank keeps about 1/N of each matrix; vectors may be on every rank."""
    _hold(trial, "parameters_kept", share(trial.case), "Free what was gathered after its use.")


def weights_are_freed(trial: CaseTrial) -> None:
    """When forward is over, whole weights are freed: a rank keeps two of them at most, for the start of backward."""
    _hold(
        trial,
        "parameters_kept_after_forward",
        share(trial.case) + two_whole(trial.case),
        "Two weights may be whole then. Free a layer's whole weight when its forward is over, and gather it anew in "
        "backward.",
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
        "The wrapped model's `parameters()` must be its shards, from construction on.",
    )


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


def _hold(trial: CaseTrial, kept: str, most: int, advice: str) -> None:
    """Hold what each rank has kept, under a name among its answers, to a number of bytes."""
    what, _, when = kept.replace("_", " ").partition(" kept")
    for rank, answer in enumerate(trial.answers):
        seen, whose = int(answer[kept]), "torch.nn" if bool(answer["layers_of_torch"]) else "cs336_basics.model"
        if seen > most:
            raise Violation(
                f"Rank {rank} of {trial.case.world_size} keeps {seen} bytes of {what}{when}; expected at most {most}, "
                "from its share of matrices and all vectors. The layers are `Linear`, `Embedding` and `RMSNorm` of "
                f"`{whose}`.",
                advice,
            )
