"""Strategies for engines: the models that wrappers train, with optimizers whose steps are as exact as gradients.

An engine may keep parameters in another dtype than the model's, and shows no gradients, so that the judge cannot follow
its rounding. An optimizer that divides by the size of a vanishing gradient would make large steps of that rounding.
"""

from dataclasses import replace
from functools import partial

from hypothesis import strategies as st

from conformance.scenarios.scenario import OptimizerKind, OptimizerSpec
from conformance.strategies import building_blocks as blocks
from conformance.strategies import optimizer, wrapper
from conformance.strategies.building_blocks import NARROW_RATES, decaying, having, mapped, perceptrons

_EPS = 1e-3
_HAVE_EPS: frozenset[OptimizerKind] = frozenset(
    {"Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam"}
)


def _smoothed(spec: OptimizerSpec) -> OptimizerSpec:
    """Return an optimizer that divides by no less than `_EPS`, if it divides by a gradient's size."""
    return replace(spec, options={**spec.options, "eps": _EPS}) if spec.kind in _HAVE_EPS else spec


_SMOOTH = (blocks.sgd() | blocks.adamw()).map(_smoothed)
_ANY = blocks.any_optimizer().filter(lambda spec: spec.kind != "Rprop").map(_smoothed)  # Rprop takes the sign alone
trained = partial(wrapper.wrapped, optimizer=_SMOOTH)
plain = trained()
on_one_rank = having(plain, world_size=1)
in_float32 = trained(model={"dtype": "float32"})
in_bfloat16 = wrapper.wrapped(model={"dtype": "bfloat16"}, optimizer=blocks.sgd(NARROW_RATES), steps=st.integers(1, 2))
in_mixed_dtypes = trained(of=blocks.of_two_dtypes(perceptrons((2, 3)), "float32"))
with_any_optimizer = wrapper.wrapped(optimizer=_ANY, steps=st.integers(2, 3))
with_frozen = mapped(trained(of=blocks.frozen(perceptrons(biases=True))), decaying)
with_tied = trained(of=blocks.tied())
with_transposed = trained(of=blocks.transposed())
with_convolution = trained(of=blocks.convolutions())
of_other_layers = trained(of=blocks.other_layers())
with_keyword = trained(layers=wrapper.SMALL, model={"keyword": True, "gain_none": st.booleans()})
accumulating = trained(micro_batches=st.integers(2, 3))
with_unused = mapped(trained(layers=wrapper.SMALL, steps=2, model={"branch": "unused"}), decaying)
_IN_SOME_STEPS = {"branch": st.sampled_from(("used_in_odd_steps", "used_in_even_steps"))}
with_some_unused = mapped(trained(layers=wrapper.SMALL, steps=3, model=_IN_SOME_STEPS), decaying)
with_state = having(optimizer.with_state, replicated=False, weighed=False)
