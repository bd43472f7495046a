"""The checks of fully sharded data parallelism, in the order in which they run."""

from functools import partial

from conformance.checks.check import Check
from conformance.checks.words import TWO_MACHINES
from conformance.components.fsdp import assertions, memory, precision
from conformance.components.fsdp.extended_table import EXTENDED
from conformance.components.fsdp.scenarios import sharded_trainings, weighed_trainings
from conformance.strategies.building_blocks import having

_PLAIN, _WIDE = sharded_trainings(), sharded_trainings(wide=True)
_DEEP, _HALF = sharded_trainings(wide=True, depths=(5, 6)), sharded_trainings(half=True)
_check = partial(Check, requires=("training_equals_one_process",))
_train = partial(_check, assertion=assertions.trains)
_memory = partial(Check, aspect="memory and state", requires=("results_are_waited_for",))
# fmt: off
CHECKS = (
    Check("results_are_waited_for", "The result of a collective is used only after a wait for it.",
        having(_PLAIN, gated=True), assertions.results_are_waited_for, "waiting"),
    _check("gathers_whole_parameters",
        "`fsdp_gather_full_params` returns every parameter whole, under the bare module's names, on every rank.",
        _PLAIN, assertions.gathers_whole_parameters, "numbers", requires=("results_are_waited_for",)),
    _train("training_equals_one_process",
        "After every step, the whole parameters equal those of one process on the concatenated batches.", _PLAIN,
        aspect="numbers", requires=("gathers_whole_parameters",)),
    _train("trains[uneven_shards]",
        "Weights train that the ranks cannot divide evenly, and weights with fewer rows than there are ranks.",
        sharded_trainings(uneven=True), aspect="kinds of parameters and layers", advice=assertions.UNEVEN_WEIGHTS),
    _memory("parameters_are_sharded",
        "Between steps, a rank keeps about 1/N of each matrix; vectors may be on every rank.", _WIDE,
        memory.parameters_are_sharded),
    _memory("nothing_whole_is_kept",
        "After wrapping, and after a step, at most three whole weights are in memory, wherever they were kept.",
        weighed_trainings, memory.nothing_whole_is_kept, requires=("parameters_are_sharded",)),
    _memory("weights_are_freed",
        "When forward is over, whole weights are freed: a rank keeps at most two of them, for the start of backward.",
        _DEEP, memory.weights_are_freed, requires=("parameters_are_sharded",)),
    _memory("weights_are_freed[in_backward]",
        "When backward is over, before `fsdp_on_after_backward`, a rank keeps at most two whole weights.", _DEEP,
        memory.weights_are_freed_in_backward, requires=("weights_are_freed",)),
    _memory("gathers_layer_by_layer",
        "When the first of ten layers has computed in forward, at most seven whole weights are in memory.",
        weighed_trainings, memory.gathers_layer_by_layer, requires=("weights_are_freed",)),
    _memory("gradients_are_sharded", "After backward, a rank keeps the gradients of its shards alone.", _WIDE,
        memory.gradients_are_sharded),
    _memory("state_is_sharded", "The optimizer's state on a rank is that of its shards alone.", _WIDE,
        memory.state_is_sharded),
    _check("keeps_full_precision",
        "With `compute_dtype`, the optimizer updates parameters in the model's own dtype: small updates add up.", _HALF,
        precision.keeps_full_precision, "precision"),
    _check("computes_in_the_dtype",
        "With `compute_dtype`, layers compute in it, and training is the same as without it, but for rounding.", _HALF,
        precision.computes_in_the_dtype, "precision", requires=("keeps_full_precision",)),
    _train("trains[keyword_arguments]", "Keyword arguments reach the module's forward.",
        sharded_trainings(keyword=True), aspect="use of the model"),
    *EXTENDED,
    _train("on_two_machines", "On two machines, each rank has the shard of its rank among all ranks.",
        having(_PLAIN, two_machines=True), aspect="robustness", level="extended", advice=TWO_MACHINES),
)
