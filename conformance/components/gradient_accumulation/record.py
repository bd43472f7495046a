"""The component `gradient_accumulation`."""

from conformance.checks.aspect import Aspect
from conformance.components.component import Component
from conformance.components.gradient_accumulation.case import AccumulationCase
from conformance.components.gradient_accumulation.numbers import draw
from conformance.components.gradient_accumulation.table import CHECKS
from conformance.execution.asked import for_each_rank
from conformance.submissions.contract import Function, part

GRADIENT_ACCUMULATION = Component(
    contract=part(
        "gradient_accumulation",
        Function("accumulate_and_step", ("ddp_model", "optimizer", "microbatches", "loss_fn", "scaler")),
    ),
    about="Takes one optimizer step over several micro-batches, with one exchange of gradients.",
    exercise="conformance.components.gradient_accumulation.on_ranks:accumulate",
    numbers=for_each_rank(draw),
    simplest=AccumulationCase(),
    checks=CHECKS,
    aspects=(
        Aspect("equals one large batch", 2.5, ("one_optimizer_step", "training_equals_one_process"), essential=True),
        Aspect("one exchange of gradients", 1, ("one_exchange_of_gradients",)),
        Aspect("steps one after the other", 0.75, ("steps_start_afresh", "fewer_in_the_last_step")),
        Aspect("gradient scaler", 0.75, ("scaler_used", "overflow_skips_the_step")),
    ),
)
