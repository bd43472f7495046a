"""Checks of fully sharded data parallelism: training as in one process, while no rank keeps more than its share."""

import math
from dataclasses import replace

import torch

from conformance.cases import FsdpCase
from conformance.checks.check import WAIT, CaseTrial, Violation, first_mismatch, listed, never_awaited
from conformance.data import RankInputs, Tensors, under
from conformance.oracle import Trajectory
from conformance.oracle import train as train_in_one_process
from conformance.tolerance import difference

_ELEMENT = 8
_MOMENTS = 2
SINGLE = 1e-3  # of the largest update; what rounding to float32 makes of small networks is a hundredth of it
EXACT = 1e-5  # the same; rounding to float32 makes a tenth of it, and to bfloat16 ten times as much
HALF = 0.25  # the same; what rounding to bfloat16, eight bits, makes of small networks is a tenth of it

_ANEW = (
    "Nothing but forward and backward gathers between these steps: are whole weights freed after their use, and "
    "gathered anew in the next forward?"
)


def shards_are_waited_for(trial: CaseTrial) -> None:
    """What a collective gives is used only after somebody has waited for it.

    Here results arrive with the wait, and not before; who reads them too early finds NaN, every time.
    """
    moments = {"start/": "before training"}
    moments |= {f"parameter/{step}/": f"after step {step + 1} of {trial.case.steps}" for step in trial.case.gathered}
    for moment, words in moments.items():
        for rank, answer in enumerate(trial.answers):
            unset = [name for name, value in under(answer, moment).items() if not bool(value.isfinite().all())]
            if unset:
                raise Violation(
                    f"On rank {rank} {words}, the whole parameter {listed(unset)} is NaN or infinite: what goes into "
                    "it was read before anybody waited for the collective that gives it, or computed so."
                    f"{never_awaited(trial.unawaited(rank))}",
                    WAIT,
                )


def gathers_whole_parameters(trial: CaseTrial) -> None:
    """`fsdp_gather_full_params` returns every parameter whole, under the bare module's names, on every rank."""
    for rank, answer in enumerate(trial.answers):
        wrong = first_mismatch(under(answer, "start/"), under(trial.given[0], "weight/"))
        if wrong:
            raise Violation(
                f"On rank {rank} before training, the whole parameter `{wrong.name}` {wrong.words}.",
                "All-gather the shards in rank order, cut off what was padded, and give them their shape again.",
            )


def sharded_training_equals_one_process(trial: CaseTrial) -> None:
    """After every step, the whole parameters equal those of one process on the concatenated batches."""
    _hold_training(
        trial,
        "Are gradients averaged over the ranks, not summed, and is the shard that the optimizer steps what the next "
        "forward gathers?",
    )


def trains_in_float32(trial: CaseTrial) -> None:
    """A model in float32 trains to the precision of float32."""
    wrong = _rounded_too_far(trial, SINGLE)
    if wrong:
        raise Violation(f"{wrong}: rounding to float32 does not explain that.", "Keep the module's own dtype.")


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


def starts_from_rank_0(trial: CaseTrial) -> None:
    """Where ranks start from different weights, training starts from those of rank 0."""
    for rank, answer in enumerate(trial.answers):
        wrong = first_mismatch(under(answer, "start/"), under(trial.given[0], "weight/"))
        if wrong:
            raise Violation(
                f"On rank {rank} before training, `{wrong.name}` is not rank 0's: it {wrong.words}.",
                "Broadcast parameters from rank 0 before sharding them.",
            )


def computes_in_the_dtype(trial: CaseTrial) -> None:
    """With `compute_dtype`, layers compute in it, and training is what it is without, but for rounding.

    Who replaces layers, or gives outputs their dtype back, is known by the rounding.
    """
    for rank, answer in enumerate(trial.answers):
        if not bool(answer["computed_half"]) and _is_exact(trial, rank):
            raise Violation(
                f"On rank {rank} with compute_dtype=torch.bfloat16, the first layer's output has another dtype, and "
                "training is as exact as without.",
                "Cast what is gathered, and the layer's inputs, to `compute_dtype`.",
            )
    wrong = _rounded_too_far(trial, HALF)
    if wrong:
        raise Violation(
            f"{wrong}: rounding to bfloat16 does not explain that.",
            "Are gradients averaged over the ranks, and do they reach the shards, with `compute_dtype` too?",
        )


def keeps_full_precision(trial: CaseTrial) -> None:
    """With `compute_dtype`, what the optimizer updates keeps the model's own dtype, so that small updates add up."""
    for rank, answer in enumerate(trial.answers):
        for name, value in under(answer, f"parameter/{trial.case.steps - 1}/").items():
            if value.dtype != torch.float32 or torch.equal(value, value.bfloat16().float()):
                raise Violation(
                    f"On rank {rank} with compute_dtype=torch.bfloat16, `{name}` is kept as bfloat16 after a step; "
                    "expected float32, as in the module.",
                    "Keep the shards in the module's dtype, and cast what is gathered, not the shard.",
                )


def accumulates_gradients(trial: CaseTrial) -> None:
    """Several backwards before a step add up, on the shards."""
    sharded_training_equals_one_process(trial)


def forward_keywords(trial: CaseTrial) -> None:
    """Keyword arguments reach the module's forward."""
    sharded_training_equals_one_process(trial)


def evaluation_between_steps(trial: CaseTrial) -> None:
    """A forward without gradients, between two steps, changes nothing."""
    sharded_training_equals_one_process(trial)


def frozen_parameters_stay(trial: CaseTrial) -> None:
    """What does not require gradients before wrapping is not trained, and the rest is."""
    sharded_training_equals_one_process(trial)


def frozen_parameters_are_sharded(trial: CaseTrial) -> None:
    """A matrix that does not train is sharded like any other, as where few parameters are trained of a large model."""
    parameters_are_sharded(trial)


def frozen_parameters_from_rank_0(trial: CaseTrial) -> None:
    """Where ranks start from different weights, rank 0's are taken also of what does not train."""
    starts_from_rank_0(trial)


def buffers_reach_forward(trial: CaseTrial) -> None:
    """Buffers, those that are not in `state_dict` too, have the module's own values in forward."""
    _hold_training(
        trial,
        "Forward adds buffers to the output. Leave them as they are, on every rank, whole: buffers are neither sharded "
        "nor reduced; and where the module is made anew, copy those that are not persistent, too.",
    )


def tied_parameters(trial: CaseTrial) -> None:
    """A weight that two layers share stays one: its gradient is that of both uses, and both see what is updated."""
    _hold_training(
        trial,
        "Two layers share a weight. Shard each parameter once, whatever modules hold it, and gather it for all of "
        "them; `named_parameters()` gives it once.",
    )


def scalar_parameter(trial: CaseTrial) -> None:
    """A parameter without dimensions trains like any other."""
    _hold_training(
        trial,
        "A parameter has no dimensions: keep it whole and average its gradient, or refuse it by an exception.",
    )


def _hold_training(trial: CaseTrial, advice: str) -> None:
    """Hold the whole parameters after every step to those of one process, where they are gathered."""
    expected = _expected(trial).parameters
    if trial.case.seldom_gathered:
        advice = f"{_ANEW} {advice}"
    for step in trial.case.gathered:
        for rank, answer in enumerate(trial.answers):
            wrong = first_mismatch(under(answer, f"parameter/{step}/"), expected[step])
            if wrong:
                raise Violation(
                    f"On rank {rank} after step {step + 1} of {trial.case.steps}, the parameter `{wrong.name}` is not "
                    f"what training in one process gives: it {wrong.words}.",
                    advice,
                )


def _rounded_too_far(trial: CaseTrial, share: float) -> str:
    """Return which parameter is off by more than a share of the largest update, in words, or nothing."""
    start, expected = under(trial.given[0], "weight/"), _expected(trial).parameters
    for step in trial.case.gathered:
        for rank, answer in enumerate(trial.answers):
            name, off, most = _furthest(under(answer, f"parameter/{step}/"), expected[step], start)
            if off > share * most:
                return (
                    f"On rank {rank} after step {step + 1}, `{name}` is {off:.3g} off training in float64, where no "
                    f"number has moved by more than {most:.3g}"
                )
    return ""


def _is_exact(trial: CaseTrial, rank: int) -> bool:
    """Whether no parameter on a rank shows the rounding of bfloat16."""
    start, expected = under(trial.given[0], "weight/"), _expected(trial).parameters
    seen = (_furthest(under(trial.answers[rank], f"parameter/{s}/"), expected[s], start) for s in trial.case.gathered)
    return all(off <= EXACT * most for _, off, most in seen)


def _furthest(seen: Tensors, wanted: Tensors, start: Tensors) -> tuple[str, float, float]:
    """Return which parameter is furthest from what it should be, how far, and how far any should have moved at most."""
    off = {name: difference(seen[name], value, 0.0).absolute for name, value in wanted.items()}
    most = max(difference(value, start[name], 0.0).absolute for name, value in wanted.items())
    name = max(off, key=off.__getitem__)
    return name, off[name], most


def _expected(trial: CaseTrial) -> Trajectory:
    case, batches = trial.case, range(trial.case.steps * trial.case.micro_batches)
    inputs = [
        RankInputs(
            under(given, "weight/"), under(given, "buffer/"), tuple((given[f"x/{m}"], given[f"y/{m}"]) for m in batches)
        )
        for given in ({name: value.double() for name, value in one.items()} for one in trial.given)
    ]
    return train_in_one_process(replace(case, dtype="float64").scenario, inputs)


def share(case: FsdpCase) -> int:
    """Return the most bytes a rank may keep: of a matrix, 1/N of its rows rounded up; of anything smaller, all."""
    shapes = case.scenario.model.shapes.values()
    shares = (math.ceil(s[0] / case.world_size) * s[1] if len(s) > 1 else math.prod(s) for s in shapes)
    return int(_ELEMENT * sum(shares))


def _too_much(trial: CaseTrial, rank: int, what: str, seen: int, most: int) -> str:
    return (
        f"Rank {rank} of {trial.case.world_size} keeps {seen} bytes of {what}; expected at most {most}, its share of "
        f"matrices and all vectors."
    )
