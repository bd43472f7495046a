"""The checks of gradient accumulation, in the order in which they run."""

from functools import partial

from conformance.checks.check import Check
from conformance.components.gradient_accumulation import assertions
from conformance.components.gradient_accumulation.scenarios import (
    accumulations,
    overflowing,
    shrinking_accumulations,
)
from conformance.strategies.building_blocks import having, one_of

_check = partial(Check, requires=("training_equals_one_process",))
_equals = partial(_check, assertion=assertions.training_equals_one_process, aspect="numbers")
_exchange = partial(_check, assertion=assertions.one_exchange_of_gradients, aspect="communication")
_extended = partial(_check, level="extended")
# fmt: off
CHECKS = (
    Check("one_optimizer_step", "A call makes one optimizer step, however many micro-batches it gets.", accumulations(),
        assertions.one_optimizer_step, "numbers"),
    _equals("training_equals_one_process",
        "A step over micro-batches gives what one process gives on all of them concatenated.", accumulations(),
        requires=("one_optimizer_step",)),
    _equals("steps_start_afresh", "Gradients of one step do not reach the next step: they are cleared in between.",
        accumulations(steps=3), advice="Call `optimizer.zero_grad()` before the first micro-batch."),
    _equals("fewer_in_the_last_step",
        "A step may have fewer micro-batches than the step before, as the last one of an epoch has.",
        shrinking_accumulations, requires=("steps_start_afresh",),
        advice="Divide by the number of micro-batches of this call, `len(microbatches)`."),
    _exchange("one_exchange_of_gradients",
        "Gradients are exchanged once a step: all micro-batches but the last run in `no_sync`.", accumulations(),
        ),
    _equals("scaler_used",
        "With a scaler, the loss is scaled, the step goes through the scaler, and its scale is updated once a step.",
        accumulations(steps=2, scaled=True), advice="Scale the loss, and step by `scaler.step(optimizer)`."),
    _equals("overflow_skips_the_step",
        "An infinite gradient on one rank skips the step on all ranks, and halves the scale.", overflowing,
        requires=("scaler_used",)),
    _exchange("one_exchange_of_gradients[forward_or_scaler]",
        "Gradients are exchanged once a step, with a scaler, and where the wrapper's forward decides, as torch's does.",
        one_of(accumulations(at="forward"), accumulations(scaled=True)), level="extended",
        requires=("one_exchange_of_gradients", "scaler_used"),
        advice="Call `ddp_model(x)`, not the module in it, and call it inside `with ddp_model.no_sync():` as well."),
    _extended("one_micro_batch_at_a_time",
        "Each micro-batch goes forward and backward before the next one, which saves memory.", accumulations(),
        assertions.one_micro_batch_at_a_time, "memory and state",
        requires=("one_exchange_of_gradients[forward_or_scaler]",)),
    _equals("finishes_before_the_step",
        "`finish_gradient_synchronization` is called before the scaler looks at gradients, and before the step.",
        one_of(
            accumulations(steps=2, at="finish"),
            accumulations(steps=2, at="finish", scaled=True),
            having(overflowing, at="finish"),
        ), level="extended", aspect="waiting", requires=("scaler_used", "overflow_skips_the_step"),
        advice="Call `ddp_model.finish_gradient_synchronization()` after the last backward, before the step and "
        "before anything else that looks at gradients or changes them, such as `scaler.unscale_` and `scaler.step`, or "
        "ranks disagree on the step."),
    _extended("arguments_stay",
        "The list of micro-batches and the tensors in it are left as they are, and may be used again.", accumulations(),
        assertions.arguments_stay, "use of the model"),
    _extended("modes_stay",
        "Every module is left in its mode: a norm may be kept in evaluation mode while the rest trains.",
        accumulations(), assertions.modes_stay, "use of the model"),
)
