"""The checks, in the order in which they run."""

from conformance.checks.check import Check
from conformance.components.gradient_accumulation import checks
from conformance.strategies import loop
from conformance.strategies.building_blocks import having

_BIG = ("equals_one_big_batch",)
CHECKS = (
    Check(checks.one_optimizer_step, loop.accumulations()),
    Check(checks.equals_one_big_batch, loop.accumulations(), points=2, requires=("one_optimizer_step",)),
    Check(checks.steps_start_afresh, loop.accumulations(steps=3), requires=_BIG),
    Check(checks.fewer_in_the_last_step, loop.shrinking_accumulations, requires=("steps_start_afresh",)),
    Check(checks.one_exchange_of_gradients, loop.accumulations(), points=2, requires=_BIG),
    Check(checks.scaler_used, loop.accumulations(steps=2, scaled=True), requires=_BIG),
    Check(checks.overflow_skips_the_step, loop.overflowing, requires=("scaler_used",)),
    Check(
        checks.forward_through_the_wrapper,
        loop.accumulations(at="forward"),
        "extended",
        requires=("one_exchange_of_gradients",),
    ),
    Check(
        checks.one_micro_batch_at_a_time,
        loop.accumulations(),
        "extended",
        requires=("forward_through_the_wrapper",),
    ),
    Check(
        checks.finishes_before_the_step,
        loop.scaled_or_not(loop.accumulations(steps=2, at="finish")),
        "extended",
        requires=(*_BIG, "scaler_used"),
    ),
    Check(
        checks.looks_for_overflow_when_finished,
        having(loop.overflowing, at="finish"),
        "extended",
        requires=("overflow_skips_the_step", "finishes_before_the_step"),
    ),
    Check(
        checks.one_exchange_with_a_scaler,
        loop.accumulations(scaled=True),
        "extended",
        requires=("one_exchange_of_gradients", "scaler_used"),
    ),
    Check(checks.leaves_the_micro_batches, loop.accumulations(), "extended", requires=_BIG),
    Check(checks.leaves_the_modes, loop.accumulations(), "extended", requires=_BIG),
)
