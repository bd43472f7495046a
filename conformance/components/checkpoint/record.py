"""The component `checkpoint`: what is drawn, its checks in the order in which they run, and its record."""

from dataclasses import replace
from functools import partial

from hypothesis import strategies as st

from conformance.checks.aspect import Aspect
from conformance.checks.check import Check
from conformance.checks.words import TWO_MACHINES
from conformance.components.checkpoint import assertions
from conformance.components.checkpoint.case import CheckpointCase, numbers
from conformance.components.component import Component
from conformance.execution.asked import for_each_rank
from conformance.strategies.building_blocks import SEEDS, Bounds, Draw, having, worlds
from conformance.submissions.contract import Function, part


@st.composite
def checkpoints(draw: Draw, bounds: Bounds) -> CheckpointCase:
    """Trainings, with a scaler or without, that go on in a world of the same size."""
    world_size, seed, steps = draw(worlds(bounds)), draw(SEEDS), st.integers(1, 3)
    scaled = draw(st.sampled_from((True, False)))
    return CheckpointCase(world_size, seed, world_size, draw(steps), draw(steps), scaled)


@st.composite
def checkpoints_of_other_worlds(draw: Draw, bounds: Bounds) -> CheckpointCase:
    """Another number of ranks goes on."""
    case: CheckpointCase = draw(checkpoints(bounds))
    others = [size for size in range(1, bounds.world_size + 1) if size != case.world_size]
    return replace(case, load_world_size=draw(st.sampled_from(others)))


# A second save fails half way, on one rank, where no other can be left waiting.
_FAILING = having(checkpoints, world_size=1, load_world_size=1, failing=True)
_check = partial(Check, theme="saving and loading", requires=("model_comes_back",))
_loads = partial(_check, assertion=assertions.model_comes_back)
_resumes = partial(_check, assertion=assertions.training_goes_on)
_extended = partial(_check, level="extended")
# fmt: off
_CHECKS = (
    _loads("model_comes_back",
        "After loading, parameters and buffers on every rank are those that were saved, bit for bit.", checkpoints,
        requires=()),
    _check("epoch_comes_back", "`load_checkpoint` returns the epoch that was saved, on every rank.", checkpoints,
        assertions.epoch_comes_back, requires=()),
    _resumes("training_goes_on",
        "Steps after loading give the same as without an interruption: the optimizer's state is back.", checkpoints),
    _check("scaler_comes_back",
        "The gradient scaler's scale, and the number of steps since it grew, are those that were saved.", checkpoints,
        assertions.scaler_comes_back, requires=()),
    _check("one_rank_writes", "A checkpoint is one file, which rank 0 alone writes.",
        having(checkpoints, apart=True), assertions.one_rank_writes, requires=()),
    _extended("on_two_machines", "On two machines, rank 0 alone writes the file.",
        having(checkpoints, apart=True, two_machines=True), assertions.one_rank_writes, theme="robustness",
        requires=("one_rank_writes",), advice=TWO_MACHINES),
    _resumes("another_world_size", "More ranks, or fewer, can load what others saved.", checkpoints_of_other_worlds,
        requires=("training_goes_on",)),
    _extended("failed_saves_raise",
        "A save that fails half way raises an exception, and leaves the checkpoint that was there before.", _FAILING,
        assertions.failed_saves_raise, theme="robustness",
        advice="Write to another name in the same folder, and `os.replace` when it is complete."),
    _extended("complete_when_it_returns", "When `save_checkpoint` has returned, on whichever rank, the file is there.",
        checkpoints, assertions.complete_when_it_returns),
    _extended("saving_changes_nothing",
        "After saving, training goes on as without it: modes, gradients and learning rates are as before.",
        having(checkpoints, goes_on=True), assertions.saving_changes_nothing, requires=("training_goes_on",)),
    _loads("the_last_save_counts", "A save to a path where there is a checkpoint replaces it.",
        having(checkpoints, again=True), advice="Write the new file, and `os.replace` the old one."),
    _loads("each_path_is_a_file_of_its_own",
        "A checkpoint stays as it is, and loads if its path is given, when another one is saved to another path.",
        having(checkpoints, later=True),
        advice="Write to the very path that is given, whatever its suffix, and load from it, not from the newest."),
    _extended("loads_what_was_saved_since",
        "A path that was loaded may be saved to again, and gives what was saved last.",
        having(checkpoints, reloaded=True), assertions.loads_what_was_saved_since,
        requires=("training_goes_on", "the_last_save_counts")),
    _extended("saves_to_any_path",
        "The path may be on another disk than temporary files, and other files beside it stay as they are.",
        having(checkpoints, other_disk=True), assertions.saves_to_any_path),
    _extended("ranks_draw_apart",
        "After loading, each rank has random numbers of its own, as before, and not all those of one rank.",
        checkpoints, assertions.ranks_draw_apart),
    _resumes("scaler_may_be_left_out",
        "A checkpoint with a gradient scaler in it loads where there is none, and training goes on.",
        having(checkpoints, scaled=True, unscaled=True), level="extended", requires=("training_goes_on",)),
)
_ASPECTS = (
    Aspect("a training goes on", 7, ("model_comes_back", "training_goes_on", "epoch_comes_back", "scaler_comes_back"),
        essential=True),
    Aspect("files", 3,
        ("one_rank_writes", "another_world_size", "the_last_save_counts", "each_path_is_a_file_of_its_own")),
)
# fmt: on
CHECKPOINT = Component(
    contract=part(
        "checkpoint",
        Function("save_checkpoint", ("path", "model", "optimizer", "scaler", "epoch")),
        Function("load_checkpoint", ("path", "model", "optimizer", "scaler")),
    ),
    about="Saves a training, and loads it again, also on another number of ranks.",
    exercise="conformance.components.checkpoint.on_ranks:save_and_load",
    numbers=for_each_rank(numbers),
    simplest=CheckpointCase(),
    shares_files=True,
    checks=_CHECKS,
    aspects=_ASPECTS,
)
