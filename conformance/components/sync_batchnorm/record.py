"""The component `sync_batchnorm`: what is drawn, its checks in the order in which they run, and its record."""

from dataclasses import replace
from functools import partial

from hypothesis import strategies as st

from conformance.checks.aspect import Aspect
from conformance.checks.check import Check
from conformance.components.component import Component
from conformance.components.sync_batchnorm import assertions
from conformance.components.sync_batchnorm.case import SyncBatchNormCase, numbers
from conformance.components.sync_batchnorm.far_from_zero import statistics_far_from_zero
from conformance.execution.asked import for_each_rank
from conformance.strategies.building_blocks import SEEDS, Bounds, Draw, having, one_of, several, worlds
from conformance.submissions.contract import Function, part


@st.composite
def norms(draw: Draw, bounds: Bounds) -> SyncBatchNormCase:
    """Batch norms whose ranks have batches of one size, in one step."""
    world_size, seed, dimensions = draw(worlds(bounds)), draw(SEEDS), draw(st.integers(2, 4))
    sizes = (draw(st.integers(2, 4)),) * world_size
    eps, momentum = draw(st.sampled_from((1e-5, 1e-3, 0.1))), draw(st.sampled_from((0.1, 0.3, 0.01, 0.0)))
    return SyncBatchNormCase(world_size, seed, sizes, dimensions, 1, eps, momentum)


@st.composite
def uneven_norms(draw: Draw, bounds: Bounds) -> SyncBatchNormCase:
    """All ranks but the first have more samples than it has."""
    case: SyncBatchNormCase = draw(norms(bounds))
    first, *others = case.sizes
    return replace(case, sizes=(first, *(size + draw(st.integers(1, 3)) for size in others)))


@st.composite
def far_norms(draw: Draw, bounds: Bounds) -> SyncBatchNormCase:
    """In float32, far from zero, and with so many samples that their spread is known; of sequences."""
    case: SyncBatchNormCase = draw(norms(bounds))
    sizes = tuple(draw(st.integers(3, 4)) for _ in case.sizes)
    return replace(case, sizes=sizes, dimensions=3, far=True)


@st.composite
def norms_of_an_empty_rank(draw: Draw, bounds: Bounds) -> SyncBatchNormCase:
    """One rank's batch is empty."""
    case: SyncBatchNormCase = draw(norms(bounds))
    empty = draw(st.integers(0, case.world_size - 1)) if case.world_size > 1 else -1
    return replace(case, sizes=tuple(0 if rank == empty else size for rank, size in enumerate(case.sizes)))


@st.composite
def norms_of_one_sample(draw: Draw, bounds: Bounds) -> SyncBatchNormCase:
    """One sample on each of several ranks, where large inputs leave room for no more."""
    case: SyncBatchNormCase = draw(norms(bounds))
    world_size = draw(several(bounds))
    return replace(case, world_size=world_size, sizes=(1,) * world_size)


_IN_TWO_STEPS = having(uneven_norms, steps=2)
_check = partial(Check, theme="numbers", requires=("forward_over_all_ranks",))
_TRAINED = ("backward_over_all_ranks", "running_statistics")
_normalises = partial(_check, assertion=assertions.normalises, requires=_TRAINED)
_extended = partial(_normalises, level="extended")
_converts = partial(_extended, theme="conversion")
# fmt: off
_CHECKS = (
    Check("conversion_keeps_state",
        "Conversion replaces batch norms at any depth, and keeps names and values of parameters and buffers.", norms,
        assertions.conversion_keeps_state, "conversion"),
    Check("results_are_waited_for",
        "The result of a collective is used only after a wait for it, in forward and in backward.",
        having(norms, gated=True), assertions.results_are_waited_for, "waiting"),
    _check("forward_over_all_ranks", "In training, mean and variance are those of all ranks' samples together.", norms,
        assertions.forward, requires=("results_are_waited_for",)),
    _check("backward_over_all_ranks", "The gradient of the input flows through the statistics of all ranks.", norms,
        assertions.backward),
    _check("trains[uneven_batches]",
        "Outputs and gradients of inputs are right where ranks have different numbers of samples.", _IN_TWO_STEPS,
        assertions.forward_and_backward, requires=("backward_over_all_ranks",),
        advice="All-reduce sums, sums of squares and counts; divide then."),
    _check("gradients_of_weight_and_bias",
        "Gradients of weight and bias are each rank's own, for the wrapper to average; together they are all samples'.",
        norms, assertions.gradients_of_weight_and_bias),
    _check("gradients_of_weight_and_bias[first_layer]",
        "Weight and bias get gradients also where the norm comes first, and its inputs need none.",
        having(norms, first=True), assertions.gradients_of_weight_and_bias, requires=("gradients_of_weight_and_bias",),
        advice="The inputs need no gradient here: compute those of weight and bias all the same, and return None for "
        "the input's, where `ctx.needs_input_grad` says so."),
    _check("running_statistics",
        "Running mean and variance follow the statistics of all ranks; the variance is divided by N - 1, N of all.",
        one_of(_IN_TWO_STEPS, having(_IN_TWO_STEPS, momentum=0.0)), assertions.running_statistics),
    _normalises("trains[other_layers]",
        "Batch norms of volumes, `nn.BatchNorm3d`, are converted like those of sequences and images.",
        having(norms, dimensions=5), theme="conversion", advice="Convert `nn.BatchNorm3d` too."),
    _check("arguments_stay",
        "Inputs and the output's gradient stay as they are: others use them too, such as a residual connection.",
        norms, assertions.arguments_stay, theme="use of the model", requires=("results_are_waited_for",)),
    _check("evaluation_by_running_statistics",
        "In evaluation mode, the running statistics are used, not those of the batch.", _IN_TWO_STEPS,
        assertions.evaluation_by_running_statistics, requires=("running_statistics",)),
    _check("no_collective_in_evaluation",
        "In evaluation mode nothing is exchanged, so that one rank may evaluate alone.", _IN_TWO_STEPS,
        assertions.no_collective_in_evaluation, theme="communication", requires=("results_are_waited_for",)),
    _normalises("one_sample_on_each_rank",
        "One sample on each rank is enough: mean and variance are those of all ranks' samples.",
        norms_of_one_sample,
        advice="There is one sample on each rank. Take sums and numbers of samples from all ranks before dividing: a "
        "rank's own variance, without bias, is 0 / 0 here."),
    _extended("rank_without_samples",
        "A rank whose batch is empty takes part, and changes nothing for the other ranks.",
        norms_of_an_empty_rank, theme="robustness",
        advice="One rank has no samples. Update running statistics on a rank without samples too, from those of all "
        "ranks: what it evaluates, or saves, is the same as on the others."),
    _converts("conversion[options]",
        "The options `affine=False`, `track_running_stats=False` and `momentum=None` are kept.",
        one_of(having(uneven_norms, affine=False), having(uneven_norms, tracked=False),
            having(uneven_norms, tracked=False, affine=False), having(_IN_TWO_STEPS, momentum=None)),
        assertion=assertions.conversion_keeps_options,
        requires=(*_TRAINED, "no_collective_in_evaluation"),
        advice="With `momentum=None`, the share of a batch is `1 / num_batches_tracked`, this one counted."),
    _converts("conversion[models]",
        "Norms of other kinds stay, a norm at two places stays one, and a model that is a norm itself is converted.",
        one_of(norms, having(norms, shared=True), having(norms, bare=True)),
        assertion=assertions.conversion_keeps_models,
        advice="Return the converted norm where the module that is given is a batch norm itself."),
    _converts("trains[frozen_parameters]",
        "A frozen weight and bias require no gradients after conversion, and gradients flow on to the input.",
        having(norms, frozen=True), assertion=assertions.frozen_parameters_stay),
    _extended("trains[evaluation_mode]",
        "A model that is converted in evaluation mode stays in it, and gradients reach the layers before the norm.",
        having(norms, evaluating=True), requires=("evaluation_by_running_statistics",),
        advice="The model was in evaluation mode when it was converted, and nothing called `train()`: give each norm "
        "the mode of the old one, `new.train(old.training)`. The forward of evaluation mode is differentiated too: no "
        "`torch.no_grad()` and no `detach()` there."),
    _extended("trains[other_inputs]",
        "Inputs may lie in memory in any order, and may differ in length by rank: each value counts the same.",
        one_of(having(norms, dimensions=4, transposed=True), having(uneven_norms, dimensions=3, stretched=True)),
        advice="Inputs and gradients are not contiguous here, or longer on each rank than on the one before. Use "
        "`flatten` or `reshape`, not `view`, and count values, not samples: each channel's are `x.numel() / "
        "x.shape[1]`."),
    _extended("trains[several_forwards]",
        "Two forwards may come before the backward of both, as where two inputs are compared.",
        having(norms, steps=2, at_once=True),
        advice="Two forwards came before the backward of the first. Keep what backward needs in autograd's context "
        "(`ctx.save_for_backward`), not in the module: there, the next forward overwrites it."),
    _extended("statistics_without_gradients",
        "In training mode, statistics are those of all ranks also where gradients are turned off.",
        having(norms, steps=2, without_gradients=True),
        advice="Steps run under `torch.no_grad()` here. Whether statistics are exchanged is decided by `self.training`:"
        " activation checkpointing, for one, runs its first forward without gradients."),
    _extended("statistics_far_from_zero",
        "In float32 too, mean and variance are exact where the mean is large against the spread.", far_norms,
        assertion=statistics_far_from_zero, theme="precision"),
)
_ASPECTS = (
    Aspect("statistics over all ranks", 5, ("results_are_waited_for", "forward_over_all_ranks",
        "backward_over_all_ranks", "gradients_of_weight_and_bias"), essential=True),
    Aspect("running statistics and evaluation", 2,
        ("running_statistics", "evaluation_by_running_statistics", "no_collective_in_evaluation")),
    Aspect("conversion", 1.5, ("conversion_keeps_state", "trains[other_layers]", "arguments_stay")),
    Aspect("unusual sizes", 1.5,
        ("trains[uneven_batches]", "one_sample_on_each_rank", "gradients_of_weight_and_bias[first_layer]")),
)
# fmt: on
SYNC_BATCHNORM = Component(
    contract=part("sync_batchnorm", Function("convert_sync_batchnorm", ("module",))),
    about="Makes batch norms compute their statistics over the samples of all ranks.",
    exercise="conformance.components.sync_batchnorm.on_ranks:normalise",
    numbers=for_each_rank(numbers),
    simplest=SyncBatchNormCase(),
    checks=_CHECKS,
    aspects=_ASPECTS,
)
