"""Checks of checkpoints: what one world saves, another loads, and trains on as if nothing had happened."""

import torch

from conformance.checks.check import Violation
from conformance.checks.compare import element_apart, first_mismatch
from conformance.checks.generators import GENERATORS
from conformance.checks.trial import CaseTrial
from conformance.checks.words import listed
from conformance.components.checkpoint.resumable import FROZEN, Resumable
from conformance.workload.numbers import Tensors


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
    writers = [rank for rank, answer in enumerate(trial.phases[0]) if answer.tensors["written"]]
    if writers != [0]:
        raise Violation(
            f"Given paths of their own, ranks {', '.join(map(str, writers)) or 'none'} of {len(trial.phases[0])} wrote "
            "to it; expected rank 0 alone.",
            "Write on rank 0 only, and let the others wait at a barrier until the file is there.",
        )


def another_world_size(trial: CaseTrial) -> None:
    """What was saved by some ranks can be loaded by more, or by fewer."""
    model, advice = _wrong_model(trial)
    end, _ = _wrong_end(trial)
    if model or end:
        ranks = f"Saved by {trial.case.world_size} ranks and loaded by {trial.case.load_world_size}: "
        raise Violation(ranks + (model or end), advice)


def the_last_save_counts(trial: CaseTrial) -> None:
    """A save to a path where there is a checkpoint replaces it."""
    problem, _ = _wrong_model(trial)
    if problem:
        raise Violation(
            f"After a second save to the same path: {problem}", "Write the new file, and `os.replace` the old one."
        )


def survives_a_failed_save(trial: CaseTrial) -> None:
    """A save that fails half way leaves the checkpoint that was there before.

    One breaks off while the state is being put together, one because there is no room for the file.
    """
    problem, _ = _wrong_model(trial)
    if problem:
        raise Violation(
            f"After saves that failed half way, by what could not be written and by a full disk: {problem}",
            "Write to another name in the same folder, and `os.replace` when it is complete.",
        )


def complete_when_it_returns(trial: CaseTrial) -> None:
    """When `save_checkpoint` has returned, on whichever rank, the file is there.

    Rank 0's `torch.save` begins when the others have returned, or wait in a collective.
    """
    for rank, answer in enumerate(trial.phases[0]):
        if not bool(answer.tensors["there"]):
            raise Violation(
                f"`save_checkpoint` returned on rank {rank} of {len(trial.phases[0])} before rank 0 had written the "
                "file: a rank that loads it then finds none, or half of one.",
                "Let all ranks wait at a barrier until rank 0 has written it.",
            )


def saving_leaves_training_alone(trial: CaseTrial) -> None:
    """Who has saved trains on as if nothing had happened: modes, gradients and learning rates are as before."""
    expected = _trained(trial, trial.case.before + trial.case.after).state()
    for rank, answer in enumerate(trial.phases[0]):
        wrong = first_mismatch(_under(answer.tensors, "went_on/"), expected)
        if wrong:
            raise Violation(
                f"On rank {rank}, {trial.case.after} more steps after saving do not give what they give without it: "
                f"`{wrong.name}` {wrong.words}.",
                "Save copies, and change neither the model nor its mode, nor what requires gradients.",
            )


def other_files_stay(trial: CaseTrial) -> None:
    """Files beside the checkpoint stay, such as another training's."""
    for rank, answer in enumerate(trial.phases[0]):
        if not bool(answer.tensors["beside"]):
            raise Violation(
                f"After saving, rank {rank} does not find `best.pt` any more, which was beside the checkpoint.",
                "Remove no file but those that this call has made.",
            )


def ranks_draw_apart(trial: CaseTrial) -> None:
    """After loading, each rank has random numbers of its own, as before, and not all those of one rank."""
    for generator, whose in GENERATORS.items():
        drawn = [tuple(answer[f"drawn/{generator}"].tolist()) for answer in trial.answers]
        for rank, numbers in enumerate(drawn):
            if numbers in drawn[:rank]:
                raise Violation(
                    f"After loading, ranks {drawn.index(numbers)} and {rank} draw the same numbers from {whose} global "
                    "generator; before, each had a seed of its own.",
                    "Save the generator's state of every rank, and give each its own; or leave generators alone.",
                )


def each_path_is_a_file_of_its_own(trial: CaseTrial) -> None:
    """What is saved to another path later leaves the first checkpoint as it is, which loads if its path is given."""
    problem, _ = _wrong_model(trial)
    if problem:
        raise Violation(
            f"Two checkpoints were saved, `checkpoint.pt` and {_later(trial)} `checkpoint.later`; the first was "
            f"loaded. {problem}",
            "Write to the very path that is given, whatever its suffix, and load from it, not from the newest.",
        )


def loads_what_was_saved_since(trial: CaseTrial) -> None:
    """A path that was loaded may be saved to again, and gives what was saved last."""
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


def _later(trial: CaseTrial) -> str:
    steps = trial.case.after
    return "1 step later" if steps == 1 else f"{steps} steps later"


def failed_saves_raise(trial: CaseTrial) -> None:
    """A save that fails says so by an exception: who goes on believes that there is a checkpoint."""
    words = {"unwritable_raised": "what cannot be written", "full_disk_raised": "a full disk"}
    for rank, answer in enumerate(trial.phases[0]):
        for name, why in words.items():
            if not bool(answer.tensors[name]):
                raise Violation(
                    f"On rank {rank}, `save_checkpoint` returned although saving had failed, by {why}.",
                    "Let exceptions of writing through: print nothing instead, and catch none.",
                )


def scaler_may_be_left_out(trial: CaseTrial) -> None:
    """A checkpoint with a gradient scaler in it loads where there is none, and training goes on."""
    model, _ = _wrong_model(trial)
    end, _ = _wrong_end(trial)
    if model or end:
        raise Violation(f"Saved with a scaler, and loaded with `scaler=None`: {model or end}")


def saves_to_any_disk(trial: CaseTrial) -> None:
    """The path may be on another disk than temporary files are, to which a file can be copied, but not renamed."""
    model_comes_back(trial)


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
