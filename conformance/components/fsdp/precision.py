"""Assertions about `compute_dtype`: layers compute in it, and shards keep their own dtype."""

import torch

from conformance.checks.check import Violation
from conformance.checks.trial import CaseTrial
from conformance.components.fsdp.assertions import expected_of, most_moved
from conformance.oracle.tolerance import difference
from conformance.workload.numbers import Tensors, under

EXACT = 1e-4  # of the largest update; rounding to float32 seldom makes a tenth of it, to bfloat16 nine times as much
HALF = 0.25  # the same; what rounding to bfloat16, eight bits, makes of small networks is a tenth of it, as a rule,
_HALF_STEP = 1e-3  # and where gradients nearly cancel, half of this in each step


def computes_in_the_dtype(trial: CaseTrial) -> None:
    """Hold layers to computing in the dtype, and training to one process but for rounding.

    Layers that were replaced, or give outputs their dtype back, are known by the rounding.
    """
    for rank, answer in enumerate(trial.answers):
        if not bool(answer["computed_half"]) and _is_exact(trial, rank):
            raise Violation(
                f"On rank {rank} with compute_dtype=torch.bfloat16, the first layer's output has another dtype, and "
                "training is as exact as without.",
                "Cast what is gathered, and the layer's inputs, to `compute_dtype`.",
            )
    wrong = _rounded_too_far(trial)
    if wrong:
        raise Violation(
            f"{wrong}: rounding to bfloat16 does not explain that.",
            "Are gradients averaged over the ranks, and do they reach the shards, with `compute_dtype` too?",
        )


def keeps_full_precision(trial: CaseTrial) -> None:
    """Hold the parameters that the optimizer updates to the model's own dtype."""
    for rank, whole in enumerate(trial.under(f"parameter/{trial.case.steps - 1}/")):
        for name, value in whole.items():
            if value.dtype == torch.float32 and not torch.equal(value, value.bfloat16().float()):
                continue
            if not bool(trial.answers[rank]["parts_are_half"]):
                raise Violation(
                    f"On rank {rank} with compute_dtype=torch.bfloat16, `fsdp_gather_full_params` returns `{name}` "
                    "rounded to bfloat16; expected float32, as `parameters()` are.",
                    "Gather there in the shards' own dtype: the one to compute in is for layers.",
                )
            raise Violation(
                f"On rank {rank} with compute_dtype=torch.bfloat16, `{name}` is kept as bfloat16 after a step; "
                "expected float32, as in the module.",
                "Keep the shards in the module's dtype, and cast what is gathered, not the shard.",
            )


def _rounded_too_far(trial: CaseTrial) -> str:
    """Return which parameter is off by more than rounding to bfloat16 explains, in words, or nothing."""
    start, expected = under(trial.given[0], "weight/"), expected_of(trial).parameters
    for step in trial.case.gathered:
        for rank, answer in enumerate(trial.answers):
            name, off, most = _furthest(under(answer, f"parameter/{step}/"), expected[step], start)
            if off > HALF * most + _HALF_STEP * (step + 1):
                return (
                    f"On rank {rank} after step {step + 1}, `{name}` is {off:.3g} off training in float64, where no "
                    f"number has moved by more than {most:.3g}"
                )
    return ""


def _is_exact(trial: CaseTrial, rank: int) -> bool:
    """Whether no parameter on a rank shows the rounding of bfloat16."""
    start, expected = under(trial.given[0], "weight/"), expected_of(trial).parameters
    seen = (_furthest(under(trial.answers[rank], f"parameter/{s}/"), expected[s], start) for s in trial.case.gathered)
    return all(off <= EXACT * most for _, off, most in seen)


def _furthest(seen: Tensors, wanted: Tensors, start: Tensors) -> tuple[str, float, float]:
    """Return which parameter is furthest from what it should be, how far, and how far any should have moved at most."""
    off = {name: difference(seen[name], value, 0.0).absolute for name, value in wanted.items()}
    name = max(off, key=off.__getitem__)
    return name, off[name], most_moved(wanted, start)
