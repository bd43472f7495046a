"""The component `checkpoint`."""

from conformance.components.checkpoint.case import CheckpointCase, draw
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
)
