"""The core checks of every wrapper, in the order in which they run."""

from functools import partial

from hypothesis import strategies as st

from conformance.checks.check import Check
from conformance.checks.precision import trains_in_two_dtypes
from conformance.checks.steps import results_are_waited_for
from conformance.checks.training import (
    gradients_averaged,
    initial_broadcast,
    ranks_stay_identical,
    runs_to_the_end,
    training_equals_one_process,
    trains,
)
from conformance.components.wrapper import use
from conformance.strategies import wrapper as draws
from conformance.strategies.building_blocks import having, one_of

UNSYNCHRONISED = ("never synchronised",)
OBVIOUS = (*UNSYNCHRONISED, "summed, not averaged", "divided twice", "never trained")
NUMBERS = ("gradients_averaged",)
_ORDER = (*NUMBERS, "trains[layers_in_another_order]")  # their parameters become ready in such an order too
_train = partial(Check, assertion=trains, requires=NUMBERS, rules_out=UNSYNCHRONISED)
_of_kinds = partial(_train, theme="kinds of parameters and layers")
_in_use = partial(_train, theme="use of the model")
# fmt: off
_BY_THEMSELVES = (
    _of_kinds("trains[frozen_parameters]",
        "Parameters that do not require gradients keep rank 0's value, and the others train as in one process.",
        draws.with_frozen),
    _of_kinds("trains[tied_parameters]",
        "A weight that two layers share stays shared, and its gradient is averaged once.", draws.with_tied),
    _of_kinds("trains[layers_in_another_order]",
        "A module may use its layers in another order than it registers them in; no two gradients are mixed up.",
        draws.in_another_order,
        advice="The layers run here in another order than `module.parameters()` lists them in: keep each result with "
        "the parameter that it belongs to, not in a list of its own that is matched by position."),
    _of_kinds("trains[scalar_parameter]", "A parameter without dimensions trains like any other.",
        draws.wrapped(model={"scale": True}), requires=_ORDER),
    _of_kinds("trains[transposed_parameter]",
        "A parameter that is stored transposed, and so is not contiguous, trains like any other.",
        draws.with_transposed),
    _of_kinds("trains[convolution]",
        "The weight of a convolution trains like any other, also where it is stored channels last.",
        draws.with_convolution, requires=_ORDER),
    _of_kinds("trains[other_layers]",
        "Models train that have embeddings, norms, attention, positions, or modules that are used twice.",
        one_of(draws.of_other_layers, draws.adding_positions), assertion=use.trains_other_layers, requires=_ORDER),
    _in_use("trains[clipped_gradients]",
        "Gradients clipped between `on_after_backward` and the optimizer's step are clipped as in one process.",
        draws.clipping, rules_out=(*UNSYNCHRONISED, "gradients of before clipping")),
    _in_use("trains[evaluation_between_steps]",
        "A forward in evaluation mode between steps gives the model's output, changes nothing, and needs no backward.",
        draws.evaluating),
    _in_use("trains[uneven_batches]",
        "Ranks that have batches of different sizes, and weight their losses accordingly, train as one process.",
        having(draws.plain, uneven=True)),
    _in_use("trains[zero_grad_in_place]",
        "Training is right with `zero_grad(set_to_none=False)`, which keeps the gradient tensors.",
        draws.wrapped(steps=st.integers(2, 3), set_to_none=False)),
    _in_use("trains[keyword_arguments]",
        "The wrapped model passes keyword arguments to the model's `forward`, None too, and without positional ones.",
        draws.with_keyword),
)
CORE = (
    Check("runs_to_the_end", "Wrapping, forward, backward and the optimizer's step run to their end on every rank.",
        draws.plain, runs_to_the_end, "numbers", rules_out=UNSYNCHRONISED),
    Check("results_are_waited_for", "The result of a collective is used only after a wait for it.",
        having(draws.plain, gated=True), results_are_waited_for, "waiting", requires=("runs_to_the_end",)),
    Check("initial_broadcast", "After wrapping, every rank holds the parameters of rank 0, bit for bit.", draws.plain,
        initial_broadcast, "numbers", requires=("results_are_waited_for",), rules_out=UNSYNCHRONISED),
    Check("trains[one_rank]", "In a world of one rank, training is the same as without the wrapper.", draws.on_one_rank,
        trains, "numbers", requires=("runs_to_the_end",)),
    Check("gradients_averaged", "After backward and `on_after_backward`, every gradient is the average over the ranks.",
        draws.plain, gradients_averaged, "numbers", requires=("results_are_waited_for",), rules_out=UNSYNCHRONISED),
    _train("training_equals_one_process",
        "After every step, every rank's parameters equal those of one process that trains on the concatenated batches.",
        draws.plain, assertion=training_equals_one_process, theme="numbers"),
    _train("ranks_stay_identical", "After every step, parameters are the same on all ranks, bit for bit.", draws.plain,
        assertion=ranks_stay_identical, theme="numbers"),
    _train("trains[float32]", "Training in float32 is right to the precision of float32, and ranks stay identical.",
        draws.in_float32, theme="precision", rules_out=OBVIOUS),
    _train("trains[bfloat16]", "Training in bfloat16 is right to the precision of bfloat16, and ranks stay identical.",
        draws.in_bfloat16, theme="precision", rules_out=OBVIOUS),
    _train("trains[mixed_dtypes]",
        "A model with parameters of two dtypes trains like any other, and each gradient is sent in its own dtype.",
        draws.in_mixed_dtypes, assertion=trains_in_two_dtypes, theme="precision", rules_out=OBVIOUS),
    *_BY_THEMSELVES,
    _train("trains[everything_together]",
        "Layers, frozen parameters, keywords, clipping and schedules that train by themselves also train together.",
        draws.mixed, theme="numbers",
        requires=("training_equals_one_process", "ranks_stay_identical", *(check.id for check in _BY_THEMSELVES))),
)
