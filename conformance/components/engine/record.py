"""The component `engine`: its checks in the order in which they run, and its record."""

from functools import partial

from hypothesis import strategies as st

from conformance.checks.aspect import Aspect
from conformance.checks.check import Check
from conformance.checks.steps import nothing_grows, results_are_waited_for
from conformance.checks.training import initial_broadcast, ranks_stay_identical, runs_to_the_end
from conformance.checks.words import TWO_MACHINES
from conformance.components.component import Component, training_numbers
from conformance.components.engine import assertions
from conformance.components.engine import scenarios as draws
from conformance.components.engine.diagnosis import diagnose
from conformance.protocol.messages import Observation
from conformance.scenarios.scenario import Scenario
from conformance.strategies import wrapper
from conformance.strategies.building_blocks import having
from conformance.submissions.contract import Contract, Function

_UNSYNCHRONISED = ("never synchronised",)
_OBVIOUS = (*_UNSYNCHRONISED, "summed, not averaged", "divided twice", "never trained")
_NUMBERS = ("training_equals_one_process",)
_train = partial(Check, assertion=assertions.trains, requires=_NUMBERS, rules_out=_UNSYNCHRONISED)
_of_kinds = partial(_train, theme="kinds of parameters and layers")
_in_use = partial(_train, theme="use of the model")
_precise = partial(_train, theme="precision", rules_out=_OBVIOUS)
# fmt: off
_CHECKS = (
    Check("runs_to_the_end",
        "Construction, forward, `backward`, `step` and `full_parameters` run to their end on every rank.", draws.plain,
        runs_to_the_end, "numbers", rules_out=_UNSYNCHRONISED),
    Check("results_are_waited_for", "The result of a collective is used only after a wait for it.",
        having(draws.plain, gated=True), results_are_waited_for, "waiting", requires=("runs_to_the_end",)),
    Check("initial_broadcast",
        "After construction, `full_parameters()` gives each parameter whole, with the model's name and rank 0's value.",
        draws.plain, initial_broadcast, "numbers", requires=("results_are_waited_for",), rules_out=_UNSYNCHRONISED),
    _train("trains[one_rank]", "In a world of one rank, the engine trains as the bare model and optimizer do.",
        draws.on_one_rank, theme="numbers", requires=("runs_to_the_end",), rules_out=()),
    _train("training_equals_one_process",
        "After every step, every rank's whole parameters equal those of one process on the concatenated batches.",
        draws.plain, assertion=assertions.training_equals_one_process, theme="numbers",
        requires=("results_are_waited_for",), rules_out=_OBVIOUS),
    _train("ranks_stay_identical", "After every step, whole parameters are the same on all ranks, bit for bit.",
        draws.plain, assertion=ranks_stay_identical, theme="numbers"),
    _precise("trains[float32]", "Training in float32 is right to the precision of float32.", draws.in_float32),
    _train("trains[any_torch_optimizer]",
        "Every torch optimizer that computes element by element works, with the options that only it has.",
        draws.with_any_optimizer, theme="options and groups"),
    _of_kinds("trains[frozen_parameters]",
        "Parameters that do not require gradients keep rank 0's value, and the others train as in one process.",
        draws.with_frozen),
    _of_kinds("trains[tied_parameters]", "A weight that two layers share stays one, and its gradient is averaged once.",
        draws.with_tied),
    _of_kinds("trains[transposed_parameter]",
        "A parameter that is stored transposed, and so is not contiguous, trains like any other.",
        draws.with_transposed),
    _of_kinds("trains[convolution]",
        "The weight of a convolution trains like any other, also where it is stored channels last.",
        draws.with_convolution),
    _of_kinds("trains[other_layers]",
        "Models train that have embeddings, norms, attention, or modules that are used twice.",
        draws.of_other_layers),
    _in_use("trains[evaluation_between_steps]",
        "A forward in evaluation mode between steps gives the model's output, changes nothing, and needs no backward.",
        having(draws.plain, evaluates=True)),
    _in_use("trains[uneven_batches]",
        "Ranks that have batches of different sizes, and weight their losses accordingly, train as one process.",
        having(draws.plain, uneven=True)),
    _in_use("trains[keyword_arguments]", "The engine passes keyword arguments to the model's `forward`, None too.",
        draws.with_keyword),
    _train("trains[accumulation]", "Several calls of `backward` before a `step` add up: the step uses all of them.",
        draws.accumulating, theme="accumulation",
        advice="The losses of the backward passes are to be added up, not averaged: one process calls "
        "`loss.backward()` for each of them."),
    _precise("trains[bfloat16]",
        "Training in bfloat16 is right to the precision of bfloat16; an engine may keep parameters in float32 too.",
        draws.in_bfloat16, level="extended"),
    _precise("trains[float64]", "A model in float64 trains to the precision of float64.", draws.plain, exact=True,
        level="extended"),
    _precise("trains[mixed_dtypes]", "A model with parameters of two dtypes trains like any other.",
        draws.in_mixed_dtypes, level="extended"),
    _of_kinds("trains[scalar_parameter]", "A parameter without dimensions trains like any other.",
        draws.trained(model={"scale": True}), level="extended"),
    _of_kinds("trains[parameters_of_any_shape]", "A parameter without elements does no harm.",
        draws.trained(model={"empty": True}), level="extended"),
    _of_kinds("trains[buffers]", "Buffers are rank 0's on every rank, and forward uses them.",
        draws.trained(model={"buffer": True}, equal_start=True), level="extended"),
    _train("trains[unused_parameters]",
        "A parameter that no rank uses is left alone by the optimizer: no weight decay, no momentum.",
        draws.with_unused, theme="parameters that take part", level="extended",
        advice="A parameter without a gradient is skipped by torch's optimizers. A gradient of zeros would let weight "
        "decay move it."),
    _train("trains[used_in_some_steps]",
        "A parameter that is used in every other step is updated in those, and left alone in the others.",
        draws.with_some_unused, theme="parameters that take part", level="extended",
        requires=("trains[unused_parameters]",)),
    _train("trains[several_forwards]",
        "Several forwards may have one `backward`, on the sum of their losses, as where two inputs are compared.",
        draws.trained(micro_batches=2, joined=True), theme="accumulation", level="extended"),
    _in_use("trains[other_arguments]",
        "The model may return a dataclass, or an object of its own, that holds the output.",
        draws.trained(layers=wrapper.SMALL, model={"output": st.sampled_from(("dataclass", "object"))}),
        level="extended"),
    _in_use("two_side_by_side", "Two engines, each with its own model and optimizer, do not affect one another.",
        having(draws.plain, twins=True), level="extended",
        advice="Another engine trains in between. Keep what belongs to one engine in that object."),
    Check("state_is_sharded", "Together the ranks hold the optimizer's state once: no rank keeps all of it.",
        draws.with_state, assertions.state_is_sharded, "memory and state", level="extended",
        requires=("runs_to_the_end",)),
    Check("nothing_grows", "Later steps launch no more collectives and keep no more tensors alive than the second one.",
        wrapper.lasting, nothing_grows, "robustness", level="extended", requires=("runs_to_the_end",)),
    _train("on_two_machines", "On two machines, the ranks of both train together.",
        having(draws.plain, two_machines=True), theme="robustness", level="extended", advice=TWO_MACHINES),
)
_ASPECTS = (
    Aspect("equals training in one process", 4,
        ("runs_to_the_end", "results_are_waited_for", "trains[one_rank]", "training_equals_one_process",
            "ranks_stay_identical", "trains[float32]"), essential=True),
    Aspect("ranks start equal", 1, ("initial_broadcast",)),
    Aspect("optimizers", 1, ("trains[any_torch_optimizer]",)),
    Aspect("kinds of parameters and layers", 2,
        ("trains[frozen_parameters]", "trains[tied_parameters]", "trains[transposed_parameter]", "trains[convolution]",
            "trains[other_layers]")),
    Aspect("use of the model", 1,
        ("trains[evaluation_between_steps]", "trains[uneven_batches]", "trains[keyword_arguments]")),
    Aspect("several backward passes", 1, ("trains[accumulation]",)),
)
# fmt: on
ENGINE = Component(
    contract=Contract("engine", "engine", Function("get_engine", ("module", "optimizer_cls"), keywords=True)),
    about="An engine that owns backward and step: forward, `backward(loss)`, `step()` and `full_parameters()`.",
    exercise="conformance.components.engine.on_ranks:train",
    numbers=training_numbers,
    simplest=Scenario(world_size=1),
    answer=Observation,
    checks=_CHECKS,
    aspects=_ASPECTS,
    start="initial_broadcast",
    carries=("runs_to_the_end", "trains[one_rank]", "training_equals_one_process"),
    diagnose=diagnose,
)
