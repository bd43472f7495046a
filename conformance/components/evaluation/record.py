"""The component `evaluation`."""

from conformance.components.component import Component
from conformance.components.evaluation.case import EvaluationCase
from conformance.components.evaluation.numbers import draw
from conformance.components.evaluation.table import CHECKS
from conformance.execution.asked import for_each_rank
from conformance.submissions.contract import Function, part

EVALUATION = Component(
    contract=part(
        "evaluation",
        Function("evaluate", ("model", "batches")),
    ),
    about="Computes the accuracy over the samples of all ranks, on every rank.",
    exercise="conformance.components.evaluation.on_ranks:evaluate",
    numbers=for_each_rank(draw),
    simplest=EvaluationCase(),
    checks=CHECKS,
)
