"""Checks of what a rank keeps under fully sharded data parallelism: its share of parameters, gradients and state."""

import math

from conformance.cases import FsdpCase
from conformance.checks.check import CaseTrial, Violation
from conformance.layers import BYTES

_MOMENTS = 2


def parameters_are_sharded(trial: CaseTrial) -> None:
    """Between steps, a rank keeps about 1/N of each matrix; vectors may be on every rank."""
    for rank, answer in enumerate(trial.answers):
        seen, most = int(answer["parameters_kept"]), share(trial.case)
        if seen > most:
            raise Violation(_too_much(trial, rank, "parameters", seen, most), "Free what was gathered after its use.")


def gradients_are_sharded(trial: CaseTrial) -> None:
    """After backward, a rank keeps the gradients of its shards alone."""
    for rank, answer in enumerate(trial.answers):
        seen, most = int(answer["gradients_kept"]), share(trial.case)
        if seen > most:
            raise Violation(
                _too_much(trial, rank, "gradients", seen, most),
                "Reduce-scatter the whole gradient, and keep a copy of this rank's part: a view keeps all of it.",
            )


def optimizer_state_is_sharded(trial: CaseTrial) -> None:
    """The optimizer's state on a rank is that of its shards alone."""
    for rank, answer in enumerate(trial.answers):
        seen, most = int(answer["state_kept"]), _MOMENTS * share(trial.case)
        if seen > most:
            raise Violation(
                _too_much(trial, rank, "optimizer state", seen, most),
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


def _too_much(trial: CaseTrial, rank: int, what: str, seen: int, most: int) -> str:
    whose = "torch.nn" if bool(trial.answers[rank]["layers_of_torch"]) else "cs336_basics.model"
    return (
        f"Rank {rank} of {trial.case.world_size} keeps {seen} bytes of {what}; expected at most {most}, its share of "
        f"matrices and all vectors. The layers are `Linear`, `Embedding` and `RMSNorm` of `{whose}`."
    )
