"""The component `evaluation`."""

from conformance.checks.aspect import Aspect
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
    aspects=(
        Aspect("accuracy over all ranks", 3, ("results_are_waited_for", "global_accuracy"), essential=True),
        Aspect("weights and counts", 2, ("weighted_by_samples", "counts_anew")),
    ),
)
