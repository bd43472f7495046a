"""The checks, in the order in which they run."""

from conformance.checks.check import Check, described
from conformance.checks.words import TWO_MACHINES
from conformance.components.checkpoint import checks
from conformance.strategies import loop
from conformance.strategies.building_blocks import having

_LOADED = ("model_comes_back",)
CHECKS = (
    described(checks.model_comes_back, loop.checkpoints(), points=2),
    described(checks.epoch_comes_back, loop.checkpoints(), requires=_LOADED),
    described(checks.training_goes_on, loop.checkpoints(), points=2, requires=_LOADED),
    described(checks.scaler_comes_back, loop.checkpoints(), requires=_LOADED),
    described(checks.one_rank_writes, loop.checkpoints(apart=True), requires=_LOADED),
    Check(
        "on_two_machines",
        "On two machines, rank 0 alone writes the file.",
        having(loop.checkpoints(apart=True), two_machines=True),
        checks.one_rank_writes,
        "robustness",
        level="extended",
        requires=("one_rank_writes",),
        advice=TWO_MACHINES,
    ),
    described(checks.another_world_size, loop.checkpoints_of_other_worlds, requires=("training_goes_on",)),
    described(checks.survives_a_failed_save, loop.failing_checkpoints, "extended", requires=_LOADED),
    described(checks.complete_when_it_returns, loop.checkpoints(), "extended", requires=_LOADED),
    described(
        checks.saving_leaves_training_alone,
        loop.checkpoints(goes_on=True),
        "extended",
        requires=("training_goes_on",),
    ),
    described(checks.the_last_save_counts, loop.checkpoints(again=True), requires=_LOADED),
    described(checks.each_path_is_a_file_of_its_own, loop.checkpoints(later=True), requires=_LOADED),
    described(
        checks.loads_what_was_saved_since,
        loop.checkpoints(reloaded=True),
        "extended",
        requires=("training_goes_on", "the_last_save_counts"),
    ),
    described(
        checks.failed_saves_raise,
        loop.failing_checkpoints,
        "extended",
        requires=("survives_a_failed_save",),
    ),
    described(checks.saves_to_any_disk, loop.checkpoints(other_disk=True), "extended", requires=_LOADED),
    described(checks.other_files_stay, loop.checkpoints(), "extended", requires=_LOADED),
    described(checks.ranks_draw_apart, loop.checkpoints(), "extended", requires=_LOADED),
    described(
        checks.scaler_may_be_left_out,
        loop.checkpoints_without_scaler,
        "extended",
        requires=("training_goes_on",),
    ),
)
