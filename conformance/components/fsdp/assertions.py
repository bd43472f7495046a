"""Assertions about fully sharded data parallelism: training is as in one process.

Those about `compute_dtype` stand at the end: layers compute in it, and shards keep their own dtype.
"""

from dataclasses import replace

import torch

from conformance.checks.check import Violation
from conformance.checks.compare import MISSING, first_mismatch, mismatches
from conformance.checks.trial import CaseTrial
from conformance.checks.words import WAIT, listed, never_awaited, step_words
from conformance.components.fsdp.case import FsdpCase
from conformance.oracle.tolerance import difference
from conformance.oracle.training import Trajectory, outputs_before
from conformance.oracle.training import train as train_in_one_process
from conformance.workload.numbers import RankInputs, Tensors, under

UNEVEN_WEIGHTS = (
    "Weights here have rows or elements that the number of ranks does not divide. Pad the flattened weight and its "
    "gradient up to a multiple of it, and cut off what was padded."
)

SINGLE = 1e-4  # of the largest update; rounding to float32 makes a third of it at most, to bfloat16 nine times as much
HALF = 0.25  # the same; what rounding to bfloat16, eight bits, makes of small networks is a tenth of it, as a rule,
_HALF_STEP = 1e-3  # and where gradients nearly cancel, half of this in each step

_ANEW = (
    "Nothing but forward and backward gathers between these steps: are whole weights freed after their use, and "
    "gathered anew in the next forward?"
)
_AVERAGED = (
    "Are gradients averaged over the ranks, not summed, and is the shard that the optimizer steps what the next "
    "forward gathers?"
)


def results_are_waited_for(trial: CaseTrial) -> None:
    """Hold whole parameters to being finite where results of collectives are NaN until a wait."""
    moments = {"start/": "before training"}
    moments |= {f"parameter/{step}/": f"after {step_words(trial.case, step)}" for step in trial.case.gathered}
    for moment, words in moments.items():
        for rank, whole in enumerate(trial.under(moment)):
            unset = [name for name, value in whole.items() if not bool(value.isfinite().all())]
            if unset:
                raise Violation(
                    f"On rank {rank} {words}, the whole parameter {listed(unset)} is NaN or infinite: what goes into "
                    "it was read before anybody waited for the collective that gives it, or computed so."
                    f"{never_awaited(trial.unawaited(rank))}",
                    WAIT,
                )


def gathers_whole_parameters(trial: CaseTrial) -> None:
    """Hold the whole parameters before training to those of the bare module, under its names."""
    for rank, wrong in mismatches(trial.under("start/"), under(trial.given[0], "weight/")):
        raise Violation(
            f"On rank {rank} before training, the whole parameter `{wrong.name}` {wrong.words}.",
            "Return every parameter under the bare module's own name, as `named_parameters()` gave it before wrapping: "
            "take out of names what wrapping has put into them."
            if wrong.words == MISSING
            else "All-gather the shards in rank order, cut off what was padded, and give them their shape again.",
        )


def initial_broadcast(trial: CaseTrial) -> None:
    """Hold the whole parameters before training to rank 0's."""
    for rank, wrong in mismatches(trial.under("start/"), under(trial.given[0], "weight/")):
        raise Violation(
            f"On rank {rank} before training, `{wrong.name}` is not rank 0's: it {wrong.words}.",
            "Broadcast parameters from rank 0 before sharding them.",
        )


def trains(trial: CaseTrial) -> None:
    """Hold outputs without gradients, and whole parameters after every step, to one process."""
    if not trial.case.alike:
        initial_broadcast(trial)
    if trial.case.evaluates:
        _hold_evaluation(trial)
    _hold_training(trial)


def _hold_evaluation(trial: CaseTrial) -> None:
    """Hold the output of a forward without gradients before each step to the model's."""
    case = _in_float64(trial)
    inputs, expected = _inputs(trial), expected_of(trial)
    for step in range(case.steps):
        outputs = outputs_before(case, inputs, expected, step)
        for rank, (answer, wanted) in enumerate(zip(trial.answers, outputs, strict=True)):
            limits = {"output": SINGLE * float(wanted.abs().max())}
            wrong = first_mismatch({"output": answer[f"evaluation/{step}"]}, {"output": wanted}, limits)
            if wrong:
                raise Violation(
                    f"On rank {rank} before {step_words(case, step)}, the output of a forward without gradients is not "
                    f"that of the model as it is by then: it {wrong.words}.",
                    "Gather whole weights anew in each forward, without gradients too, and free them after.",
                )


def _hold_training(trial: CaseTrial) -> None:
    """Hold the whole parameters after every step to those of one process, where they are gathered."""
    case, expected = trial.case, expected_of(trial).parameters
    for step in case.gathered:
        moved = most_moved(expected[step], under(trial.given[0], "weight/"))
        limits = dict.fromkeys(expected[step], (SINGLE + case.lossy) * moved) if case.followed else None
        for rank, wrong in mismatches(trial.under(f"parameter/{step}/"), expected[step], limits):
            raise Violation(
                f"On rank {rank} after {step_words(case, step)}, the parameter `{wrong.name}` is not what training in "
                f"one process gives: it {wrong.words}.",
                f"{_ANEW} {_AVERAGED}" if case.seldom_gathered else _AVERAGED,
            )


def most_moved(after: Tensors, start: Tensors) -> float:
    """Return how far the number has moved that has moved most."""
    return max(difference(value, start[name]) for name, value in after.items())


def expected_of(trial: CaseTrial) -> Trajectory:
    """Return what one process gives, in double precision."""
    return train_in_one_process(_in_float64(trial), _inputs(trial))


def _in_float64(trial: CaseTrial) -> FsdpCase:
    case: FsdpCase = replace(trial.case, model=trial.case.model.in_float64)
    return case


def _inputs(trial: CaseTrial) -> list[RankInputs]:
    """Return what each rank was given, in double precision."""
    return [
        RankInputs.from_names({n: value.double() if value.is_floating_point() else value for n, value in own.items()})
        for own in trial.given
    ]


def computes_in_the_dtype(trial: CaseTrial) -> None:
    """Hold layers to computing in the dtype, and training to one process but for rounding.

    Layers that were replaced, or give outputs their dtype back, are known by the rounding.
    """
    expected = expected_of(trial).parameters
    for rank, answer in enumerate(trial.answers):
        errors = [_largest_error(trial, answer, step, expected[step]) for step in trial.case.gathered]
        if not bool(answer["computed_half"]) and all(off <= SINGLE * moved for _, off, moved in errors):
            raise Violation(
                f"On rank {rank} with compute_dtype=torch.bfloat16, the first layer's output has another dtype, and "
                "training is as exact as without.",
                "Cast what is gathered, and the layer's inputs, to `compute_dtype`.",
            )
        for step, (name, off, moved) in zip(trial.case.gathered, errors, strict=True):
            if off > HALF * moved + _HALF_STEP * (step + 1):
                raise Violation(
                    f"On rank {rank} after step {step + 1}, `{name}` is {off:.3g} off training in float64, where no "
                    f"number has moved by more than {moved:.3g}: rounding to bfloat16 does not explain that.",
                    "Are gradients averaged over the ranks, and do they reach the shards, with `compute_dtype` too?",
                )


def _largest_error(trial: CaseTrial, answer: Tensors, step: int, expected: Tensors) -> tuple[str, float, float]:
    """Return which parameter is furthest from what it should be, how far, and how far any should have moved at most."""
    seen = under(answer, f"parameter/{step}/")
    off = {name: difference(seen[name], value) for name, value in expected.items()}
    name = max(off, key=off.__getitem__)
    return name, off[name], most_moved(expected, under(trial.given[0], "weight/"))


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
