"""The component `checkpoint`."""

from conformance.checks.aspect import Aspect
from conformance.components.checkpoint.case import CheckpointCase
from conformance.components.checkpoint.numbers import draw
from conformance.components.checkpoint.table import CHECKS
from conformance.components.component import Component
from conformance.execution.asked import for_each_rank
from conformance.submissions.contract import Function, part

CHECKPOINT = Component(
    contract=part(
        "checkpoint",
        Function("save_checkpoint", ("path", "model", "optimizer", "scaler", "epoch")),
        Function("load_checkpoint", ("path", "model", "optimizer", "scaler")),
    ),
    about="Saves a training, and loads it again, also on another number of ranks.",
    exercise="conformance.components.checkpoint.on_ranks:save_and_load",
    numbers=for_each_rank(draw),
    simplest=CheckpointCase(),
    checks=CHECKS,
    aspects=(
        Aspect(
            "a training goes on",
            7,
            ("model_comes_back", "training_goes_on", "epoch_comes_back", "scaler_comes_back"),
            essential=True,
        ),
        Aspect(
            "files",
            3,
            ("one_rank_writes", "another_world_size", "the_last_save_counts", "each_path_is_a_file_of_its_own"),
        ),
    ),
)
