"""The component `both`: a submission's wrapper together with its sharded optimizer. Each may be right by itself."""

from functools import partial

from hypothesis import strategies as st

from conformance.checks.aspect import Aspect
from conformance.checks.check import Check
from conformance.checks.training import trains
from conformance.components.component import Component, training_numbers
from conformance.components.sharded_optimizer.assertions import closure
from conformance.components.sharded_optimizer.record import SHARDED_OPTIMIZER
from conformance.components.wrapper.record import WRAPPERS
from conformance.diagnosis.gradients import diagnose
from conformance.protocol.messages import Observation
from conformance.scenarios.scenario import Scenario
from conformance.strategies import building_blocks as blocks
from conformance.strategies import optimizer as draws
from conformance.strategies import optimizer_changes as changes
from conformance.strategies import param_groups as groups
from conformance.strategies.building_blocks import having, one_of
from conformance.submissions.contract import Contract

ORDER = ("ddp_bucketed", "ddp_individual_parameters", "ddp", "flat_ddp", "naive_ddp")
_BY_NAME = {wrapper.name: wrapper.contract for wrapper in WRAPPERS}
_together = partial(having, replicated=False, equal_start=True, cleared_by="optimizer")
_accumulating = draws.stepping(micro_batches=st.integers(2, 3), no_sync=True)
_transposed = draws.stepping(model=blocks.transposed(), steps=st.integers(2, 3))
_train = partial(
    Check,
    assertion=trains,
    requires=("training_equals_one_process",),
    rules_out=("never synchronised", "never trained"),
)
# fmt: off
_CHECKS = (
    _train("training_equals_one_process",
        "The submission's wrapper and its sharded optimizer together train as one process does on all batches.",
        _together(draws.optimized), theme="numbers", requires=()),
    _train("trains[transposed_parameter]",
        "A weight that is stored transposed, or channels last, trains also where the wrapped model has it.",
        one_of(_together(_transposed), _together(draws.optimized_with_convolution)),
        theme="kinds of parameters and layers",
        advice="The wrapper knows how each parameter lay in memory when it wrapped the model. Does the optimizer "
        "change that? Write with `p.data.copy_(...)`, and leave `p.data` the tensor that it is."),
    _train("groups[own_options]",
        "Two groups with options of their own, and a scheduler, work on the optimizer of a wrapped model too.",
        one_of(_together(groups.with_groups), _together(changes.adding_before), _together(changes.with_scheduler)),
        theme="options and groups"),
    _train("trains[accumulation]",
        "Gradients of several micro-batches, or clipped ones, are what the optimizer uses, once they are averaged.",
        one_of(_together(_accumulating), _together(draws.optimized_clipped)), theme="accumulation",
        advice="Gradients are averaged in `on_after_backward`, after which they may be clipped: use `p.grad` as it is "
        "when `step` is called."),
    _train("closure",
        "A closure that clears gradients, runs backward and lets the wrapper average is called once on each rank.",
        _together(draws.with_closure), assertion=closure, theme="use of the model"),
)
_ASPECTS = (
    Aspect("equals one process", 2, ("training_equals_one_process",), essential=True),
    Aspect("kinds of parameters", 1, ("trains[transposed_parameter]",)),
    Aspect("groups, micro-batches and closures", 2, ("groups[own_options]", "trains[accumulation]", "closure")),
)
# fmt: on
BOTH = Component(
    contract=Contract("both", "pair", SHARDED_OPTIMIZER.contract.get, wrappers=tuple(_BY_NAME[name] for name in ORDER)),
    about=f"The sharded optimizer with the first wrapper that the submission has of {', '.join(ORDER)}.",
    exercise="conformance.ranks.train:train",
    numbers=training_numbers,
    simplest=Scenario(world_size=1, equal_start=True),
    answer=Observation,
    checks=_CHECKS,
    carries=("training_equals_one_process",),
    aspects=_ASPECTS,
    diagnose=diagnose,
)
