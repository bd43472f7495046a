"""Assertions about checkpoints: one world saves, another loads, and trains on as if nothing had happened."""

import torch

from conformance.checks.check import Violation
from conformance.checks.compare import element_apart, first_mismatch
from conformance.checks.steps import GENERATORS
from conformance.checks.trial import CaseTrial
from conformance.checks.words import listed
from conformance.components.checkpoint.resumable import FROZEN, Resumable
from conformance.workload.numbers import Tensors


def model_comes_back(trial: CaseTrial) -> None:
    """Hold parameters and buffers after loading to those that were saved, bit for bit."""
    problem, advice = _wrong_model(trial)
    if problem:
        raise Violation(f"{_circumstances(trial)}{problem}", advice)


def epoch_comes_back(trial: CaseTrial) -> None:
    """Hold the epoch that `load_checkpoint` returns on every rank to the one that was saved."""
    for rank, answer in enumerate(trial.answers):
        seen, expected = float(answer["epoch"]), float(trial.given[0]["epoch"])
        if seen != expected:
            raise Violation(
                f"On rank {rank}, `load_checkpoint` returned "
                f"{'no number' if seen != seen else format(seen, 'g')}; expected epoch {expected:g}, as saved."  # noqa: PLR0124  NaN
            )


def training_goes_on(trial: CaseTrial) -> None:
    """Hold the model after loading, and after further steps, to a training without a break."""
    model_comes_back(trial)
    problem, advice = _wrong_end(trial)
    if problem:
        raise Violation(f"{_circumstances(trial)}{problem}", advice)


def scaler_comes_back(trial: CaseTrial) -> None:
    """Hold the gradient scaler's scale, and the steps since it grew, to those that were saved."""
    expected = _trained(trial, trial.case.before).scale()
    for rank, answer in enumerate(trial.answers):
        if answer["scale"].tolist() != expected.tolist():
            raise Violation(
                f"On rank {rank} after loading, the scaler's scale is {answer['scale'][0]:g}, {answer['scale'][1]:g} "
                f"steps after it grew; expected {expected[0]:g} and {expected[1]:g}, as saved.",
                "Save `scaler.state_dict()`, and load it with `scaler.load_state_dict`.",
            )


def one_rank_writes(trial: CaseTrial) -> None:
    """Hold the ranks that write to rank 0."""
    writers = [rank for rank, answer in enumerate(trial.phases[0]) if answer.tensors["written"]]
    if writers != [0]:
        raise Violation(
            f"Given paths of their own, ranks {', '.join(map(str, writers)) or 'none'} of {len(trial.phases[0])} wrote "
            "to it; expected rank 0 alone.",
            "Write on rank 0 only, and let the others wait at a barrier until the file is there.",
        )


def failed_saves_raise(trial: CaseTrial) -> None:
    """Hold saves that fail half way to leaving the checkpoint before them as it is, and to raising.

    One breaks off while the state is being put together, one because there is no room for the file.
    """
    model_comes_back(trial)
    words = {"unwritable_raised": "what cannot be written", "full_disk_raised": "a full disk"}
    for rank, answer in enumerate(trial.phases[0]):
        for name, why in words.items():
            if not bool(answer.tensors[name]):
                raise Violation(
                    f"On rank {rank}, `save_checkpoint` returned although saving had failed, by {why}.",
                    "Let exceptions of writing through: print nothing instead, and catch none.",
                )


def complete_when_it_returns(trial: CaseTrial) -> None:
    """Hold the file to being there when `save_checkpoint` returns on any rank.

    Rank 0's `torch.save` begins when the others have returned, or wait in a collective.
    """
    for rank, answer in enumerate(trial.phases[0]):
        if not bool(answer.tensors["there"]):
            raise Violation(
                f"`save_checkpoint` returned on rank {rank} of {len(trial.phases[0])} before rank 0 had written the "
                "file: a rank that loads it then finds none, or half of one.",
                "Let all ranks wait at a barrier until rank 0 has written it.",
            )


def saving_changes_nothing(trial: CaseTrial) -> None:
    """Hold training after saving to a training that was not saved."""
    expected = _trained(trial, trial.case.before + trial.case.after).state()
    for rank, answer in enumerate(trial.phases[0]):
        wrong = first_mismatch(_under(answer.tensors, "went_on/"), expected)
        if wrong:
            raise Violation(
                f"On rank {rank}, {trial.case.after} more steps after saving do not give what they give without it: "
                f"`{wrong.name}` {wrong.words}.",
                "Save copies, and change neither the model nor its mode, nor what requires gradients.",
            )


def saves_to_any_path(trial: CaseTrial) -> None:
    """Hold a checkpoint on another disk to coming back, and files beside it to staying."""
    model_comes_back(trial)
    for rank, answer in enumerate(trial.phases[0]):
        if not bool(answer.tensors["beside"]):
            raise Violation(
                f"After saving, rank {rank} does not find `best.pt` any more, which was beside the checkpoint.",
                "Remove no file but those that this call has made.",
            )


def ranks_draw_apart(trial: CaseTrial) -> None:
    """Hold the numbers that ranks draw after loading to being different."""
    for generator, whose in GENERATORS.items():
        drawn = [tuple(answer[f"drawn/{generator}"].tolist()) for answer in trial.answers]
        for rank, numbers in enumerate(drawn):
            if numbers in drawn[:rank]:
                raise Violation(
                    f"After loading, ranks {drawn.index(numbers)} and {rank} draw the same numbers from {whose} global "
                    "generator; before, each had a seed of its own.",
                    "Save the generator's state of every rank, and give each its own; or leave generators alone.",
                )


def loads_what_was_saved_since(trial: CaseTrial) -> None:
    """Hold a path that was loaded before to what was saved to it since."""
    for rank, answer in enumerate(trial.answers):
        expected, loaded = (_under(answer, f"{moment}/") for moment in ("end", "reloaded"))
        wrong = [name for name, value in expected.items() if not _same(loaded[name], value)]
        if wrong:
            raise Violation(
                f"On rank {rank}, a checkpoint was loaded, and the path was saved to again {_later(trial)}; "
                f"loaded once more, {listed(wrong)} differ from what was saved: `{wrong[0]}` at "
                f"{element_apart(loaded[wrong[0]], expected[wrong[0]])}.",
                "Read the file whenever it is loaded: what was read before may have been written over.",
            )


def _circumstances(trial: CaseTrial) -> str:
    """Return what is special about a case, as the beginning of a sentence."""
    case = trial.case
    if case.failing:
        return "After saves that failed half way, by what could not be written and by a full disk: "
    if case.again:
        return "After a second save to the same path: "
    if case.later:
        return f"Saved to `checkpoint.pt`, and {_later(trial)} to `checkpoint.later`; the first was loaded. "
    if case.unscaled:
        return "Saved with a scaler, and loaded with `scaler=None`: "
    if case.load_world_size != case.world_size:
        return f"Saved by {case.world_size} ranks and loaded by {case.load_world_size}: "
    return ""


def _later(trial: CaseTrial) -> str:
    steps = trial.case.after
    return "1 step later" if steps == 1 else f"{steps} steps later"


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same bit for bit; `torch.equal` takes 1 and 1.0 for the same."""
    return one.dtype == other.dtype and torch.equal(one, other)


def _wrong_model(trial: CaseTrial) -> tuple[str, str]:
    """Return what of the model is not what rank 0 of the first world had when it saved, and what to do."""
    expected = _under(trial.phases[0][0].tensors, "saved/")
    for rank, answer in enumerate(trial.answers):
        loaded = _under(answer, "loaded/")
        wrong = [name for name, value in expected.items() if not _same(loaded[name], value)]
        if wrong:
            others = {name: value for name, value in _under(trial.given[rank], "other/").items() if name in wrong}
            kept = others and all(torch.equal(loaded[name], value) for name, value in others.items())
            problem = f"On rank {rank} after loading, {listed(wrong)} differ from what was saved: `{wrong[0]}` at "
            if wrong == [FROZEN]:
                advice = f"`{FROZEN}` is frozen: save all of `model.state_dict()`, not what trains alone."
                seen, wanted = loaded[FROZEN], expected[FROZEN]
                return problem + element_apart(seen, wanted), advice
            advice = "Buffers are not saved: save `model.state_dict()`, not the parameters alone."
            if kept:
                advice = "They are what they were before loading: load into the model that is given, on every rank."
            seen, wanted = loaded[wrong[0]], expected[wrong[0]]
            if seen.dtype != wanted.dtype:
                return f"{problem}the dtype {seen.dtype}, expected {wanted.dtype}", "Save and load each dtype as it is."
            return problem + element_apart(seen, wanted), advice if kept or not others else ""
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
            return problem, (
                "Save `optimizer.state_dict()`, and load all of it on every rank: without it the moments start from "
                "zero, and the learning rate is that of construction; each group has its own."
            )
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
