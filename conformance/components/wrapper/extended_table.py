"""The extended checks of every wrapper, in the order in which they run."""

from functools import partial

from hypothesis import strategies as st

from conformance.checks.check import Check
from conformance.checks.steps import global_generators_stay, nothing_grows
from conformance.checks.training import trains
from conformance.checks.words import TWO_MACHINES
from conformance.components.wrapper import use
from conformance.components.wrapper.collectives import freezing
from conformance.components.wrapper.core_table import NUMBERS, OBVIOUS, UNSYNCHRONISED
from conformance.strategies import wrapper as draws
from conformance.strategies.building_blocks import having, one_of

_ARGUMENTS = (
    {"positional": True},
    {"nested": True},
    {"named": True},
    {"output": "dataclass"},
    {"output": "object"},
)
_ACCUMULATES, _NO_SYNC = ("trains[accumulation]",), ("no_sync",)
_check = partial(Check, level="extended", requires=NUMBERS)
_train = partial(_check, assertion=trains, rules_out=UNSYNCHRONISED)
_of_kinds = partial(_train, theme="kinds of parameters and layers")
_in_use = partial(_train, theme="use of the model")
_taking_part = partial(_train, theme="parameters that take part")
_accumulate = partial(_train, theme="accumulation")
_lazily = partial(_train, theme="accumulation", assertion=use.accumulates_without_sending)

# fmt: off
EXTENDED = (
    _train("trains[float64]",
        "A model in float64 trains to the precision of float64, also if it is converted to float64 after wrapping.",
        one_of(draws.plain, draws.converted_to_float64), exact=True, theme="precision",
        assertion=use.trains_in_float64),
    _check("nothing_grows",
        "Later steps launch no more collectives, have no more hooks, and keep no more tensors alive than early ones.",
        draws.lasting, nothing_grows, "robustness"),
    _check("overflow_reaches_every_rank",
        "Where one rank's gradient is infinite or NaN, all ranks see that: a scaler then skips the step on all.",
        draws.wrapped(steps=1, overflows=True), use.overflow_reaches_every_rank, "robustness"),
    _train("on_two_machines", "Ranks on two machines average gradients over all ranks, not over those of one machine.",
        having(draws.plain, two_machines=True), theme="robustness", advice=TWO_MACHINES),
    _train("large_worlds", "Training is right in a world of 64 ranks, which are simulated in one process.",
        draws.in_a_large_world, theme="robustness",
        advice="It is right with 3 ranks. Is there a number of ranks in the code, a limit, or a group of some ranks?"),
    _train("any_schedule", "Training is right whichever rank runs first, and whenever results arrive.",
        draws.in_any_order, theme="robustness", requires=("runs_to_the_end",), rules_out=(),
        explores=draws.in_every_order,
        advice="It is right where ranks run in turn. Does the code go on after some time, or do what depends on which "
        "result came first? Wait for each result with `wait()`, in an order that all ranks share."),
    _in_use("arguments_stay",
        "Wrapping leaves `grad` at None: with a gradient of zeros, an optimizer would move unused parameters.",
        draws.plain, assertion=use.gradients_stay_none, requires=("runs_to_the_end",), rules_out=()),
    _in_use("global_generators_stay",
        "Wrapping leaves the global generators of random numbers as they were: torch's, Python's and NumPy's.",
        draws.plain, assertion=global_generators_stay, requires=("runs_to_the_end",), rules_out=(),
        advice="What is drawn afterwards, such as dropout, depends on it, and ranks that share a seed draw alike: "
        "make a generator of your own (`torch.Generator()`, `random.Random()`), and seed that."),
    _in_use("calls_the_model",
        "A forward of the wrapped model calls the model once, with its hooks, in the mode that was set.",
        draws.evaluating, assertion=use.calls_the_model, rules_out=()),
    _in_use("two_side_by_side", "Two wrapped models whose forwards and backwards alternate do not affect one another.",
        draws.wrapped(layers=draws.SMALL, twins=True),
        advice="Another model was wrapped and trained beside it. Keep what belongs to one wrapper in that object, not "
        "in its class or in a global of the module."),
    _in_use("trains[between_forward_and_backward]",
        "Between forward and backward, gradients may be cleared, or the model called under `torch.no_grad()`.",
        one_of(draws.wrapped(steps=2, clears_late=True), draws.wrapped(layers=draws.SMALL, peeks=True)),
        advice="`zero_grad`, or a forward under `torch.no_grad()`, comes between forward and backward here: put "
        "nothing into `.grad` before backward has begun, and let such a forward leave alone what was prepared for "
        "backward."),
    _in_use("trains[evaluation_mode]",
        "Backward averages gradients in evaluation mode too: some models train in it, to keep norms' statistics fixed.",
        draws.wrapped(in_evaluation=True)),
    _in_use("trains[other_arguments]",
        "Tensors go in and out of `forward` in several arguments, tuples, dicts, named tuples, dataclasses, objects.",
        one_of(*(draws.wrapped(layers=draws.SMALL, model=one, steps=1) for one in _ARGUMENTS))),
    _in_use("trains[through_module]",
        "A forward that is called on the wrapper's `module` trains as well, or raises a clear exception.",
        having(draws.plain, unwrapped=True), assertion=use.trains_through_module,
        advice="It goes wrong where forward is called on `wrapper.module`, past the wrapper. Prepare backward in hooks "
        "on the parameters, or raise an exception that says how to call the model."),
    _in_use("trains[recomputed_activations]",
        "Training is right where backward computes activations again (`torch.utils.checkpoint`, reentrant or not).",
        one_of(draws.wrapped(layers=(2, 3), model={"recomputed": True}), draws.computing_twice),
        assertion=use.trains_recomputed),
    _in_use("trains[gradient_penalty]",
        "A loss may contain the outputs' gradient by the inputs (`create_graph=True`): backward goes through that too.",
        draws.wrapped(penalised=True), rules_out=(*UNSYNCHRONISED, "penalty not trained on")),
    _in_use("trains[loaded_weights]",
        "Training goes on from the weights that the wrapped model's `load_state_dict` loads.", draws.loading,
        assertion=use.trains_loaded_weights, rules_out=(*UNSYNCHRONISED, "loaded weights not used")),
    _accumulate("trains[accumulation]",
        "Gradients of several backward passes, each followed by `on_after_backward`, add up.", draws.accumulating),
    _accumulate("trains[accumulation_before_finishing]",
        "Several backward passes may come before one `on_after_backward`: right numbers need no `no_sync`.",
        having(draws.accumulating, finishes_once=True), requires=_ACCUMULATES,
        advice="Two backward passes come before `on_after_backward` here. What the first one has sent is out of date "
        "by then: send the sum again, and leave `.grad` alone while a collective works on it."),
    _accumulate("trains[several_forwards]",
        "Several forwards may have one backward, on the sum of their losses, as where two inputs are compared.",
        having(draws.accumulating, joined=True)),
    _accumulate("trains[after_an_exception]",
        "After a backward pass that raised on all ranks, and `zero_grad`, training goes on as if it had not been.",
        one_of(draws.aborting, draws.aborting_at_first), theme="robustness"),
    _lazily("no_sync",
        "Under `no_sync`, also nested, nothing is sent, and the next backward outside averages the whole sum.",
        one_of(draws.under_no_sync, having(draws.under_no_sync, nests=True),
            having(draws.under_no_sync, world_size=1)), requires=(*_ACCUMULATES, "trains[one_rank]"),
        advice="A `no_sync` may be entered and left within another one: when a block ends, put back what was before "
        "it, in place of switching synchronisation on.", rules_out=()),
    _of_kinds("trains[large_parameters]",
        "A model trains to its last element where it has more than a hundred parameters, or one of 2^20 elements.",
        one_of(draws.of_many_parameters, draws.with_large), requires=("trains[float32]",), rules_out=OBVIOUS,
        advice="There are more than a hundred parameters here, or one of more than 2**20 elements: is there a limit "
        "to what is sent at once, something of fixed length, or a remainder that is lost where tensors are sent in "
        "parts?"),
    _of_kinds("trains[parameters_of_any_shape]",
        "Parameters that are empty, complex, have gaps in memory, or change layout after wrapping train like others.",
        one_of(draws.with_gaps, draws.wrapped(layers=draws.SMALL, model={"empty": True}), draws.with_complex_numbers,
            draws.converted_to_channels_last), assertion=use.trains_any_shape,
        requires=("trains[transposed_parameter]", "trains[convolution]")),
    _of_kinds("trains[sparse_gradients]",
        "Sparse gradients, as of `nn.Embedding(sparse=True)`, are averaged, also with other numbers of rows by rank.",
        one_of(draws.with_sparse_gradients, having(draws.with_sparse_gradients, uneven=True)),
        requires=(*NUMBERS, "trains[uneven_batches]")),
    _of_kinds("trains[buffers]",
        "Every rank holds rank 0's buffers after wrapping, integer and non-persistent ones too, and trains with them.",
        draws.wrapped(layers=draws.SMALL, model={"buffer": True}, steps=1, gated=True),
        assertion=use.buffers_broadcast, rules_out=()),
    _of_kinds("range_of_float16",
        "Gradients that float16 can hold have an average that it can hold, though it cannot hold their sum.",
        draws.at_the_end_of_float16, assertion=use.range_of_float16, theme="precision",
        requires=("trains[frozen_parameters]",)),
    _taking_part("trains[used_on_some_ranks]",
        "A parameter that only some ranks use gets the average, with zero for the others, and no rank waits forever.",
        one_of(draws.with_branch("used_on_rank_0", "used_on_rank_1"), draws.with_branch("one_each"),
            draws.with_branch("used_on_rank_0", "used_on_rank_1", steps=st.integers(1, 2), micro_batches=2)),
        requires=_ACCUMULATES,
        advice="Even ranks may use one parameter here, and odd ranks another. A parameter that any rank uses counts as "
        "used on all ranks."),
    _taking_part("trains[gradient_order_differs]",
        "Gradients that become ready in another order on another rank are not mixed up.",
        draws.with_branch("order_by_rank")),
    _taking_part("trains[freezing_later]",
        "A parameter that is frozen after wrapping stays as it is, and a step in which all are frozen sends nothing.",
        draws.freezing, assertion=freezing),
    _taking_part("trains[unfreezing_later]",
        "A parameter that begins to train after wrapping is averaged from then on.", draws.unfreezing),
    _taking_part("trains[unused_parameters]",
        "A parameter that no rank uses is left alone by the optimizer, and no rank waits for its gradient.",
        draws.with_branch("unused")),
    _taking_part("trains[used_in_some_steps]",
        "A parameter that all ranks use in every other step, or by turns, has no gradient left from an earlier step.",
        one_of(draws.with_branch("used_in_even_steps", "used_in_odd_steps", steps=st.integers(2, 4)),
            draws.with_branch("used_in_turn", steps=st.integers(2, 3))),
        requires=("trains[unused_parameters]", "trains[used_on_some_ranks]")),
    _taking_part("trains[outside_the_optimizer]",
        "Gradients of parameters that the optimizer does not hold yet are averaged like others.", draws.held_later),
    _accumulate("no_sync[exception]",
        "A backward pass that raises under `no_sync` ends it: later passes are averaged again.",
        having(draws.aborting, micro_batches=2, no_sync=True), requires=(*_NO_SYNC, "trains[after_an_exception]"),
        advice="The block of `no_sync` may be left by an exception: put back in a `finally` what it switches off."),
    _accumulate("no_sync[unused_in_the_last_micro_batch]",
        "A parameter that only micro-batches under `no_sync` use is averaged, though the last backward is without it.",
        draws.with_branch("used_in_first_micro_batch", steps=st.integers(1, 2), micro_batches=2),
        requires=(*_NO_SYNC, "trains[unused_parameters]"),
        advice="A parameter has its gradient from the micro-batch under `no_sync` alone, and no hook of it runs in "
        "the last one: after that, look at `.grad` of all parameters, not at what has come in this backward."),
)
