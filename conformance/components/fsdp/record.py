"""The component `fsdp`: its checks in the order in which they run, and its record."""

from functools import partial

from conformance.checks.aspect import Aspect
from conformance.checks.check import Check
from conformance.checks.words import TWO_MACHINES
from conformance.components.component import Component
from conformance.components.fsdp import assertions, memory
from conformance.components.fsdp import scenarios as draws
from conformance.components.fsdp.case import FsdpCase, numbers
from conformance.components.fsdp.scenarios import FIRST_LINEAR, network, sharded_trainings, with_model
from conformance.execution.asked import for_each_rank
from conformance.strategies.building_blocks import having, one_of
from conformance.submissions.contract import Function, part

_PLAIN, _WIDE = sharded_trainings(), sharded_trainings(wide=True)
_DEEP = sharded_trainings(wide=True, depths=(5, 6))
_HALF = having(_PLAIN, half=True, optimizer=draws.PLAIN_SGD)
_FROZEN = {"frozen": (f"layers.{FIRST_LINEAR}.weight",)}
_check = partial(Check, requires=("training_equals_one_process",))
_train = partial(_check, assertion=assertions.trains)
_memory = partial(_check, theme="memory and state", requires=("results_are_waited_for",))
_extended = partial(_check, level="extended")
_keeps = partial(_extended, theme="memory and state")
_of_kinds = partial(_train, level="extended", theme="kinds of parameters and layers")
_in_use = partial(_train, level="extended", theme="use of the model")
_accumulate = partial(_train, level="extended", theme="accumulation")
# fmt: off
_CHECKS = (
    Check("results_are_waited_for", "The result of a collective is used only after a wait for it.",
        having(_PLAIN, gated=True), assertions.results_are_waited_for, "waiting"),
    _check("gathers_whole_parameters",
        "`fsdp_gather_full_params` returns every parameter whole, under the bare module's names, on every rank.",
        _PLAIN, assertions.gathers_whole_parameters, "numbers", requires=("results_are_waited_for",)),
    _train("training_equals_one_process",
        "After every step, the whole parameters equal those of one process on the concatenated batches.", _PLAIN,
        theme="numbers", requires=("gathers_whole_parameters",)),
    _train("trains[parameters_of_any_shape]",
        "Weights train that the ranks cannot divide evenly, and weights with fewer rows than there are ranks.",
        sharded_trainings(uneven=True), theme="kinds of parameters and layers", advice=assertions.UNEVEN_WEIGHTS),
    _memory("parameters_are_sharded",
        "Between steps, a rank keeps about 1/N of each matrix; vectors may be on every rank.", _WIDE,
        memory.parameters_are_sharded),
    _memory("nothing_whole_is_kept",
        "After wrapping, and after a step, at most three whole weights are in memory, wherever they were kept.",
        draws.weighed_trainings, memory.nothing_whole_is_kept, requires=("parameters_are_sharded",)),
    _memory("weights_are_freed",
        "When forward is over, whole weights are freed: a rank keeps at most two of them, for the start of backward.",
        _DEEP, memory.weights_are_freed, requires=("parameters_are_sharded",)),
    _memory("weights_are_freed[in_backward]",
        "When backward is over, before `fsdp_on_after_backward`, a rank keeps at most two whole weights.", _DEEP,
        memory.weights_are_freed_in_backward, requires=("weights_are_freed",)),
    _memory("gathers_layer_by_layer",
        "When the first of ten layers has computed in forward, at most seven whole weights are in memory.",
        draws.weighed_trainings, memory.gathers_layer_by_layer, requires=("weights_are_freed",)),
    _memory("gradients_are_sharded", "After backward, a rank keeps the gradients of its shards alone.", _WIDE,
        memory.gradients_are_sharded),
    _memory("state_is_sharded", "The optimizer's state on a rank is that of its shards alone.", _WIDE,
        memory.state_is_sharded),
    _check("keeps_full_precision",
        "With `compute_dtype`, the optimizer updates parameters in the model's own dtype: small updates add up.", _HALF,
        assertions.keeps_full_precision, "precision"),
    _check("computes_in_the_dtype",
        "With `compute_dtype`, layers compute in it, and training is the same as without it, but for rounding.", _HALF,
        assertions.computes_in_the_dtype, "precision", requires=("keeps_full_precision",)),
    _train("trains[keyword_arguments]", "Keyword arguments reach the module's forward.",
        with_model(_PLAIN, keyword=True), theme="use of the model"),
    _extended("initial_broadcast",
        "Where ranks start from different weights, training starts from rank 0's, also of frozen parameters.",
        one_of(having(_PLAIN, alike=False), with_model(having(_PLAIN, alike=False), **_FROZEN)),
        assertions.initial_broadcast, "numbers", requires=("gathers_whole_parameters",)),
    _of_kinds("trains[float64]", "A model in float64 trains to the precision of float64.",
        with_model(_PLAIN, dtype="float64"), theme="precision",
        advice="Keep the module's own dtype, also where that is not float32, or refuse it by an exception."),
    _of_kinds("trains[other_layers]", "A linear layer may have a bias, and may compute more than once in a forward.",
        one_of(draws.biased_trainings, draws.trainings_with_a_layer_used_twice),
        advice="A linear layer has a bias here, or computes twice in each forward. Average the gradient of what is "
        "not sharded, also in a layer whose weight is; gather a weight for each use, also in backward, and add up the "
        "gradients of both."),
    _of_kinds("trains[frozen_parameters]",
        "A parameter that does not require gradients before wrapping is not trained, and the others are.",
        with_model(draws.biased_trainings, **_FROZEN),
        advice="A linear layer's weight does not require gradients, and its bias does. The weight must not get one; "
        "it has to be gathered for backward all the same, and to be freed, though no hook on its gradient is called."),
    _of_kinds("trains[buffers]",
        "Buffers have the module's own values in forward, also buffers that are not in `state_dict`.",
        with_model(_PLAIN, buffer=True),
        advice="Forward adds buffers to the output. Leave them as they are, on every rank, whole: buffers are neither "
        "sharded nor reduced; and where the module is made anew, copy those that are not persistent, too."),
    _of_kinds("trains[tied_parameters]",
        "A weight that two layers share stays one: its gradient is that of both uses, and both see its updates.",
        draws.tied_trainings,
        advice="Two layers share a weight. Shard each parameter once, whatever modules hold it, and gather it for all "
        "of them; `named_parameters()` gives it once."),
    _of_kinds("trains[scalar_parameter]", "A parameter without dimensions trains like any other.",
        with_model(_PLAIN, scale=True),
        advice="A parameter has no dimensions: keep it whole and average its gradient, or refuse it by an exception."),
    _of_kinds("trains[transposed_parameter]",
        "A weight that is stored transposed, and so is not contiguous, is taken from rank 0 and trains like any other.",
        with_model(having(_PLAIN, alike=False), transposed=FIRST_LINEAR),
        requires=("initial_broadcast", "training_equals_one_process"),
        advice="A linear layer's weight is stored transposed: `.contiguous()` makes a copy of it."),
    _of_kinds("trains[unused_parameters]",
        "A parameter that no rank uses is left alone by the optimizer, and no rank waits for its gradient.",
        with_model(_PLAIN, branch="unused"), theme="parameters that take part",
        advice="A linear layer is never called: its shard gets no gradient, on any rank. One of zeros would let "
        "weight decay move it."),
    _in_use("trains[evaluation_between_steps]",
        "A forward without gradients, between two steps, gives the model's output, and changes nothing.",
        having(_PLAIN, evaluates=True)),
    _in_use("trains[other_arguments]",
        "The module may return a dataclass, or an object of its own, that holds the output.",
        one_of(*(with_model(_PLAIN, output=kind) for kind in ("dataclass", "object"))),
        advice="The module's output is no tensor here, but an object that holds it: hooks on tensors of the output "
        "find none in it. Prepare backward by hooks on what autograd saves or on parameters, or raise an exception."),
    _in_use("trains[after_an_exception]",
        "After a backward pass that raised on all ranks, and `zero_grad`, training goes on as if it had not been.",
        one_of(*(having(_PLAIN, aborts=step, steps=3) for step in (0, 1))), theme="robustness",
        advice="A backward pass raised half way before. Reset in forward what that pass left: whole weights, gradients "
        "that were not yet reduced, and what says that backward is going on; or raise an exception."),
    _in_use("trains[between_forward_and_backward]",
        "Gradients may be cleared between forward and backward, as many training loops do.",
        having(_PLAIN, clears_late=True),
        advice="`zero_grad` comes after forward here: let backward add nothing to a gradient that was cleared."),
    _in_use("trains[evaluation_mode]",
        "Training is right in evaluation mode too: some models train in it, to keep norms' statistics fixed.",
        having(_PLAIN, in_evaluation=True),
        advice="`eval()` was called on the wrapped model: gather, and average gradients, in either mode."),
    _accumulate("trains[accumulation]", "The gradients of several backwards before a step add up, on the shards.",
        having(_PLAIN, micro_batches=2),
        advice="Here two backwards go before each step: add what the second one gives to the shard's gradient."),
    _accumulate("trains[several_forwards]",
        "Several forwards may have one backward, on the sum of their losses, as where two inputs are compared.",
        having(_PLAIN, micro_batches=2, joined=True), requires=("trains[accumulation]",),
        advice="Two forwards go before one backward, which needs each weight twice: gather it for each use that "
        "backward comes to, and add up the gradients of both."),
    _keeps("memory_is_given_back",
        "After forward, also in evaluation mode, at most three whole weights are in memory: autograd keeps none.",
        one_of(draws.weighed_trainings, having(draws.weighed_trainings, in_evaluation=True)),
        memory.memory_is_given_back, requires=("gathers_layer_by_layer",),
        advice="Where a model trains in evaluation mode, autograd tells whether a backward will come."),
    _keeps("parameters_are_sharded[uneven_or_frozen]",
        "A matrix is sharded also where its rows do not divide evenly, as in a vocabulary, and where it is frozen.",
        one_of(sharded_trainings(wide=True, uneven=True), with_model(_WIDE, **_FROZEN)),
        memory.parameters_are_sharded,
        requires=("parameters_are_sharded", "trains[parameters_of_any_shape]", "trains[frozen_parameters]")),
    _keeps("nothing_grows", "Later steps keep no more tensors alive than early ones.",
        having(_PLAIN, counted=True, steps=7), memory.nothing_grows, theme="robustness"),
    _train("on_two_machines", "On two machines, each rank has the shard of its rank among all ranks.",
        having(_PLAIN, two_machines=True), theme="robustness", level="extended", advice=TWO_MACHINES),
)
_ASPECTS = (
    Aspect("equals the unsharded model", 4, ("results_are_waited_for", "gathers_whole_parameters",
        "training_equals_one_process", "trains[keyword_arguments]"), essential=True),
    Aspect("parameters are sharded", 4, ("parameters_are_sharded", "nothing_whole_is_kept"), essential=True),
    Aspect("gradients and state are sharded", 2, ("gradients_are_sharded", "state_is_sharded")),
    Aspect("weights are gathered and freed", 2.5,
        ("weights_are_freed", "weights_are_freed[in_backward]", "gathers_layer_by_layer")),
    Aspect("precision", 1.5, ("keeps_full_precision", "computes_in_the_dtype")),
    Aspect("unusual sizes", 1, ("trains[parameters_of_any_shape]",)),
)
# fmt: on
FSDP = Component(
    contract=part(
        "fsdp",
        Function("get_fsdp", ("module", "compute_dtype")),
        Function("fsdp_on_after_backward", ("fsdp_model", "optimizer")),
        Function("fsdp_gather_full_params", ("fsdp_model",)),
    ),
    about="Fully sharded data parallelism: each rank keeps a share of every parameter.",
    exercise="conformance.components.fsdp.on_ranks:train",
    numbers=for_each_rank(numbers),
    simplest=FsdpCase(1, network(2, 2, 2)),
    checks=_CHECKS,
    aspects=_ASPECTS,
    advice=lambda case: assertions.UNEVEN_WEIGHTS if case.unevenly_shared else "",
)
