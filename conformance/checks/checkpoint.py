"""Checks of checkpoints: what one world saves, another loads, and trains on as if nothing had happened."""

import torch

from conformance.checks.check import CaseTrial, Violation, element_apart, first_mismatch, listed
from conformance.data import Tensors
from conformance.resumable import Resumable


def model_comes_back(trial: CaseTrial) -> None:
    """After loading, parameters and buffers on every rank are those that were saved, bit for bit."""
    problem, advice = _wrong_model(trial)
    if problem:
        raise Violation(problem, advice)


def epoch_comes_back(trial: CaseTrial) -> None:
    """`load_checkpoint` returns the epoch that was saved, on every rank."""
    for rank, answer in enumerate(trial.answers):
        seen, expected = float(answer["epoch"]), float(trial.given[0]["epoch"])
        if seen != expected:
            raise Violation(
                f"On rank {rank}, `load_checkpoint` returned "
                f"{'no number' if seen != seen else format(seen, 'g')}; expected epoch {expected:g}, as saved."  # noqa: PLR0124  NaN
            )


def training_goes_on(trial: CaseTrial) -> None:
    """Steps after loading give what they would have given without an interruption: the optimizer's state is back."""
    problem, advice = _wrong_end(trial)
    if problem:
        raise Violation(problem, advice)


def scaler_comes_back(trial: CaseTrial) -> None:
    """The gradient scaler's scale, and the steps since it grew last, are those that were saved."""
    expected = _trained(trial, trial.case.before).scale()
    for rank, answer in enumerate(trial.answers):
        if answer["scale"].tolist() != expected.tolist():
            raise Violation(
                f"On rank {rank} after loading, the scaler's scale is {answer['scale'][0]:g}, {answer['scale'][1]:g} "
                f"steps after it grew; expected {expected[0]:g} and {expected[1]:g}, as saved.",
                "Save `scaler.state_dict()`, and load it with `scaler.load_state_dict`.",
            )


def one_rank_writes(trial: CaseTrial) -> None:
    """Rank 0 writes the file, and nobody else does: ranks that write one path at a time damage it."""
    counts = [int(answer.tensors["files"]) for answer in trial.phases[0]]
    writers = [rank for rank, files in enumerate(counts) if files]
    if writers != [0]:
        raise Violation(
            f"Given paths of their own, ranks {', '.join(map(str, writers)) or 'none'} of {len(counts)} wrote a file; "
            "expected rank 0 alone.",
            "Write on rank 0 only, and let the others wait at a barrier until the file is there.",
        )


def another_world_size(trial: CaseTrial) -> None:
    """What was saved by some ranks can be loaded by more, or by fewer."""
    model, advice = _wrong_model(trial)
    end, _ = _wrong_end(trial)
    if model or end:
        ranks = f"Saved by {trial.case.world_size} ranks and loaded by {trial.case.load_world_size}: "
        raise Violation(ranks + (model or end), advice)


def survives_a_failed_save(trial: CaseTrial) -> None:
    """A save that fails half way leaves the checkpoint that was there before."""
    problem, _ = _wrong_model(trial)
    if problem:
        raise Violation(
            f"After a second save that failed half way: {problem}",
            "Write to another name in the same folder, and `os.replace` when it is complete.",
        )


def _wrong_model(trial: CaseTrial) -> tuple[str, str]:
    """Return what of the model is not what rank 0 of the first world had when it saved, and what to do."""
    expected = _under(trial.phases[0][0].tensors, "saved/")
    for rank, answer in enumerate(trial.answers):
        loaded = _under(answer, "loaded/")
        wrong = [name for name, value in expected.items() if not torch.equal(loaded[name], value)]
        if wrong:
            others = {name: value for name, value in _under(trial.given[rank], "other/").items() if name in wrong}
            kept = others and all(torch.equal(loaded[name], value) for name, value in others.items())
            problem = f"On rank {rank} after loading, {listed(wrong)} differ from what was saved: `{wrong[0]}` at "
            advice = "Buffers are not saved: save `model.state_dict()`, not the parameters alone."
            if kept:
                advice = "They are what they were before loading: load into the model that is given, on every rank."
            return problem + element_apart(loaded[wrong[0]], expected[wrong[0]]), advice if kept or not others else ""
    return "", ""


def _wrong_end(trial: CaseTrial) -> tuple[str, str]:
    case = trial.case
    expected = _trained(trial, case.before + case.after).state()
    for rank, answer in enumerate(trial.answers):
        wrong = first_mismatch(_under(answer, "end/"), expected)
        if wrong:
            problem = (
                f"On rank {rank}, {case.before} steps, a checkpoint and {case.after} more steps do not give what "
                f"{case.before + case.after} steps without a break give: `{wrong.name}` {wrong.words}."
            )
            return problem, "Save `optimizer.state_dict()`, and load it: without it the moments start from zero."
    return "", ""


def _trained(trial: CaseTrial, steps: int) -> Resumable:
    """Return a training of so many steps without a break."""
    given = trial.given[0]
    training = Resumable(_under(given, "start/"), scaled=trial.case.scaled)
    for step in range(steps):
        training.step((given[f"x/{step}"], given[f"y/{step}"]))
    return training


def _under(named: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}
