"""The component `gradient_accumulation`: what is drawn, its checks in the order in which they run, and its record."""

from dataclasses import replace
from functools import partial

from hypothesis import strategies as st

from conformance.checks.aspect import Aspect
from conformance.checks.check import Check
from conformance.components.component import Component
from conformance.components.gradient_accumulation import assertions
from conformance.components.gradient_accumulation.case import AccumulationCase, numbers
from conformance.execution.asked import for_each_rank
from conformance.strategies.building_blocks import SEEDS, Bounds, Draw, having, one_of, worlds
from conformance.submissions.contract import Function, part


@st.composite
def accumulations(draw: Draw, bounds: Bounds) -> AccumulationCase:
    """One step over two micro-batches, more, or one."""
    micro_batches, samples = draw(st.sampled_from((2, 3, 4, 1))), draw(st.integers(1, 3))
    return AccumulationCase(draw(worlds(bounds)), draw(SEEDS), 1, micro_batches, samples)


@st.composite
def shrinking_accumulations(draw: Draw, bounds: Bounds) -> AccumulationCase:
    """Two or three steps, the last of which has one micro-batch fewer."""
    case: AccumulationCase = draw(accumulations(bounds))
    micro_batches = draw(st.integers(2, 4))
    return replace(case, steps=draw(st.integers(2, 3)), micro_batches=micro_batches, shrinking=True)


@st.composite
def overflowing(draw: Draw, bounds: Bounds) -> AccumulationCase:
    """One rank's gradients are infinite in the first of two steps with a scaler."""
    case: AccumulationCase = draw(accumulations(bounds))
    return replace(case, steps=2, scaled=True, overflow=draw(st.integers(0, case.world_size - 1)))


_check = partial(Check, requires=("training_equals_one_process",))
_equals = partial(_check, assertion=assertions.training_equals_one_process, theme="numbers")
_exchange = partial(_check, assertion=assertions.one_exchange_of_gradients, theme="communication")
_extended = partial(_check, level="extended")
# fmt: off
_CHECKS = (
    Check("one_optimizer_step", "A call makes one optimizer step, however many micro-batches it gets.", accumulations,
        assertions.one_optimizer_step, "numbers"),
    _equals("training_equals_one_process",
        "A step over micro-batches gives what one process gives on all of them concatenated.", accumulations,
        requires=("one_optimizer_step",)),
    _equals("steps_start_afresh", "Gradients of one step do not reach the next step: they are cleared in between.",
        having(accumulations, steps=3), advice="Call `optimizer.zero_grad()` before the first micro-batch."),
    _equals("fewer_in_the_last_step",
        "A step may have fewer micro-batches than the step before, as the last one of an epoch has.",
        shrinking_accumulations, requires=("steps_start_afresh",),
        advice="Divide by what this call gets: the number of its micro-batches, or of their samples."),
    _exchange("one_exchange_of_gradients",
        "Gradients are exchanged once a step: all micro-batches but the last run in `no_sync`.", accumulations,
        requires=("one_optimizer_step",)),
    _equals("scaler_used",
        "With a scaler, the loss is scaled, the step goes through the scaler, and its scale is updated once a step.",
        having(accumulations, steps=2, scaled=True)),
    _equals("overflow_skips_the_step",
        "An infinite gradient on one rank skips the step on all ranks, and halves the scale.", overflowing,
        requires=("scaler_used",)),
    _equals("trains[uneven_batches]",
        "Micro-batches may differ in size: each counts by its number of samples, as in one batch of all of them.",
        having(accumulations, uneven=True), level="extended",
        advice="Multiply the loss of each micro-batch, a mean, by its share of the samples: "
        "`len(x) / sum(len(x) for x, _ in microbatches)`. Divided by the number of micro-batches, samples of a small "
        "one count more."),
    _exchange("one_exchange_of_gradients[forward_or_scaler]",
        "Gradients are exchanged once a step, with a scaler, and where the wrapper's forward decides, as torch's does.",
        one_of(having(accumulations, at="forward"), having(accumulations, scaled=True)), level="extended",
        requires=("one_exchange_of_gradients", "scaler_used"),
        advice="Call `ddp_model(x)`, not the module in it, and call it inside `with ddp_model.no_sync():` as well."),
    _extended("one_micro_batch_at_a_time",
        "Each micro-batch goes forward and backward before the next one, which saves memory.", accumulations,
        assertions.one_micro_batch_at_a_time, "memory and state",
        requires=("one_exchange_of_gradients[forward_or_scaler]",)),
    _equals("finishes_before_the_step",
        "`finish_gradient_synchronization` is called before the scaler looks at gradients, and before the step.",
        one_of(
            having(accumulations, steps=2, at="finish"),
            having(accumulations, steps=2, at="finish", scaled=True),
            having(overflowing, at="finish"),
        ), level="extended", theme="waiting", requires=("scaler_used", "overflow_skips_the_step"),
        advice="Call `ddp_model.finish_gradient_synchronization()` after the last backward, before the step and "
        "before anything else that looks at gradients or changes them, such as `scaler.unscale_` and `scaler.step`, or "
        "ranks disagree on the step."),
    _extended("arguments_stay",
        "The list of micro-batches and the tensors in it are left as they are, and may be used again.", accumulations,
        assertions.arguments_stay, "use of the model"),
    _extended("modes_stay",
        "Every module is left in its mode: a norm may be kept in evaluation mode while the rest trains.",
        accumulations, assertions.modes_stay, "use of the model"),
)
_ASPECTS = (
    Aspect("equals one large batch", 2.5, ("one_optimizer_step", "training_equals_one_process"), essential=True),
    Aspect("one exchange of gradients", 1, ("one_exchange_of_gradients",)),
    Aspect("steps one after the other", 0.75, ("steps_start_afresh", "fewer_in_the_last_step")),
    Aspect("gradient scaler", 0.75, ("scaler_used", "overflow_skips_the_step")),
)
# fmt: on
GRADIENT_ACCUMULATION = Component(
    contract=part(
        "gradient_accumulation",
        Function("accumulate_and_step", ("ddp_model", "optimizer", "microbatches", "loss_fn", "scaler")),
    ),
    about="Takes one optimizer step over several micro-batches, with one exchange of gradients.",
    exercise="conformance.components.gradient_accumulation.on_ranks:accumulate",
    numbers=for_each_rank(numbers),
    simplest=AccumulationCase(),
    checks=_CHECKS,
    aspects=_ASPECTS,
)
