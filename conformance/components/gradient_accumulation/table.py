"""The checks, in the order in which they run."""

from conformance.checks.check import described
from conformance.components.gradient_accumulation import checks
from conformance.strategies import loop
from conformance.strategies.building_blocks import having

_BIG = ("equals_one_big_batch",)
CHECKS = (
    described(checks.one_optimizer_step, loop.accumulations()),
    described(checks.equals_one_big_batch, loop.accumulations(), points=2, requires=("one_optimizer_step",)),
    described(checks.steps_start_afresh, loop.accumulations(steps=3), requires=_BIG),
    described(checks.fewer_in_the_last_step, loop.shrinking_accumulations, requires=("steps_start_afresh",)),
    described(checks.one_exchange_of_gradients, loop.accumulations(), points=2, requires=_BIG),
    described(checks.scaler_used, loop.accumulations(steps=2, scaled=True), requires=_BIG),
    described(checks.overflow_skips_the_step, loop.overflowing, requires=("scaler_used",)),
    described(
        checks.forward_through_the_wrapper,
        loop.accumulations(at="forward"),
        "extended",
        requires=("one_exchange_of_gradients",),
    ),
    described(
        checks.one_micro_batch_at_a_time,
        loop.accumulations(),
        "extended",
        requires=("forward_through_the_wrapper",),
    ),
    described(
        checks.finishes_before_the_step,
        loop.scaled_or_not(loop.accumulations(steps=2, at="finish")),
        "extended",
        requires=(*_BIG, "scaler_used"),
    ),
    described(
        checks.looks_for_overflow_when_finished,
        having(loop.overflowing, at="finish"),
        "extended",
        requires=("overflow_skips_the_step", "finishes_before_the_step"),
    ),
    described(
        checks.one_exchange_with_a_scaler,
        loop.accumulations(scaled=True),
        "extended",
        requires=("one_exchange_of_gradients", "scaler_used"),
    ),
    described(checks.leaves_the_micro_batches, loop.accumulations(), "extended", requires=_BIG),
    described(checks.leaves_the_modes, loop.accumulations(), "extended", requires=_BIG),
)
