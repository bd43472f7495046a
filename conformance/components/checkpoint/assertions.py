"""Assertions about checkpoints: one world saves, another loads, and trains on as if nothing had happened."""

import torch

from conformance.checks.check import Violation
from conformance.checks.compare import element_apart, mismatches
from conformance.checks.steps import GENERATORS
from conformance.checks.trial import CaseTrial
from conformance.checks.words import ONE_FILE, listed
from conformance.components.checkpoint.resumable import FROZEN, Resumable
from conformance.workload.numbers import Tensors, under


def model_comes_back(trial: CaseTrial) -> None:
    """Hold parameters and buffers after loading to those that were saved, bit for bit."""
    saved = trial.under("saved/", world=0)[0]
    for rank, loaded in enumerate(trial.under("loaded/")):
        if wrong := _changed(loaded, saved):
            name = wrong[0]
            retyped = loaded[name].dtype != saved[name].dtype
            dtypes = f"the dtype {loaded[name].dtype}, expected {saved[name].dtype}"
            raise Violation(
                f"{_circumstances(trial)}On rank {rank} after loading, {listed(wrong)} differ from what was saved: "
                f"`{name}` at {dtypes if retyped else element_apart(loaded[name], saved[name])}",
                "Save and load each dtype as it is." if retyped else _how_to_load(trial, rank, loaded, wrong),
            )


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
    before, after = trial.case.before, trial.case.after
    for rank, wrong in mismatches(trial.under("end/"), _trained(trial, before + after).state()):
        raise Violation(
            f"{_circumstances(trial)}On rank {rank}, {before} steps, a checkpoint and {after} more steps do not give "
            f"what {before + after} steps without a break give: `{wrong.name}` {wrong.words}.",
            "Save `optimizer.state_dict()`, and load all of it on every rank: without it the moments start from zero, "
            "and the learning rate is that of construction; each group has its own.",
        )


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
    beside = [rank for rank in trial.ranks_where("wrote_beside", holds=True, world=0) if rank]
    if beside:
        raise Violation(
            f"On rank {beside[0]} of {trial.case.world_size}, `save_checkpoint` wrote a file beside the path that it "
            "was given; expected rank 0 alone to write.",
            ONE_FILE,
        )
    writers = list(trial.ranks_where("written", holds=True, world=0))
    if writers != [0]:
        raise Violation(
            f"Given paths of their own, ranks {', '.join(map(str, writers)) or 'none'} of {trial.case.world_size} "
            "wrote to it; expected rank 0 alone.",
            "Write on rank 0 only, and let the others wait at a barrier until the file is there.",
        )


def failed_saves_raise(trial: CaseTrial) -> None:
    """Hold saves that fail half way to leaving the checkpoint before them as it is, and to raising.

    One breaks off while the state is being put together, one because there is no room for the file.
    """
    model_comes_back(trial)
    for fact, why in (("unwritable_raised", "the scaler's state"), ("full_disk_raised", "a file to a full disk")):
        for rank in trial.ranks_where(fact, holds=False, world=0):
            raise Violation(
                f"On rank {rank}, `save_checkpoint` returned although it could not write {why}.",
                "Let the exception reach the caller: do not catch it, or raise it again after cleaning up.",
            )


def complete_when_it_returns(trial: CaseTrial) -> None:
    """Hold the file to being there when `save_checkpoint` returns on any rank.

    Rank 0's `torch.save` begins when the others have returned, or wait in a collective.
    """
    for rank in trial.ranks_where("there", holds=False, world=0):
        raise Violation(
            f"`save_checkpoint` returned on rank {rank} of {trial.case.world_size} before rank 0 had written the "
            "file: a rank that loads it then finds none, or half of one.",
            "Let all ranks wait at a barrier until rank 0 has written it.",
        )


def saving_changes_nothing(trial: CaseTrial) -> None:
    """Hold training after saving to a training that was not saved."""
    expected = _trained(trial, trial.case.before + trial.case.after).state()
    for rank, wrong in mismatches(trial.under("went_on/", world=0), expected):
        raise Violation(
            f"On rank {rank}, {trial.case.after} more steps after saving do not give what they give without it: "
            f"`{wrong.name}` {wrong.words}.",
            "Save copies, and change neither the model nor its mode, nor what requires gradients.",
        )


def saves_to_any_path(trial: CaseTrial) -> None:
    """Hold a checkpoint on another disk to coming back, and files beside it to staying."""
    model_comes_back(trial)
    for rank in trial.ranks_where("beside", holds=False, world=0):
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
    for rank, (saved, loaded) in enumerate(zip(trial.under("end/"), trial.under("reloaded/"), strict=True)):
        if wrong := _changed(loaded, saved):
            raise Violation(
                f"On rank {rank}, a checkpoint was loaded, and the path was saved to again {_later(trial)}; "
                f"loaded once more, {listed(wrong)} differ from what was saved: `{wrong[0]}` at "
                f"{element_apart(loaded[wrong[0]], saved[wrong[0]])}.",
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


def _changed(loaded: Tensors, saved: Tensors) -> list[str]:
    """Return the names of tensors that differ in a bit, or in their dtype: `torch.equal` takes 1 and 1.0 for equal."""
    return [n for n, one in saved.items() if loaded[n].dtype != one.dtype or not torch.equal(loaded[n], one)]


def _how_to_load(trial: CaseTrial, rank: int, loaded: Tensors, wrong: list[str]) -> str:
    """Return what to do about these parameters and buffers, which are not what was saved."""
    if wrong == [FROZEN]:
        return f"`{FROZEN}` is frozen: save all of `model.state_dict()`, not what trains alone."
    before = {name: value for name, value in under(trial.given[rank], "other/").items() if name in wrong}
    if not before:
        return "Buffers are not saved: save `model.state_dict()`, not the parameters alone."
    if all(torch.equal(loaded[name], value) for name, value in before.items()):
        return "They are what they were before loading: load into the model that is given, on every rank."
    return ""


def _trained(trial: CaseTrial, steps: int) -> Resumable:
    """Return a training of so many steps without a break."""
    given = trial.given[0]
    training = Resumable(under(given, "start/"), scaled=trial.case.scaled)
    for step in range(steps):
        training.step((given[f"x/{step}"], given[f"y/{step}"]))
    return training
