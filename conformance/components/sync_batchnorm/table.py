"""The checks of synchronised batch norm, in the order in which they run."""

from functools import partial

from conformance.checks.check import Check
from conformance.components.sync_batchnorm import assertions
from conformance.components.sync_batchnorm import scenarios as draws
from conformance.components.sync_batchnorm.far_from_zero import statistics_far_from_zero
from conformance.strategies.building_blocks import having, one_of

_NORMS, _UNEVEN = draws.norms(), draws.norms(uneven=True, steps=2)
_check = partial(Check, aspect="numbers", requires=("forward_over_all_ranks",))
_normalises = partial(
    _check, assertion=assertions.normalises, requires=("backward_over_all_ranks", "running_statistics")
)
_extended = partial(_normalises, level="extended")
_converts = partial(_extended, aspect="conversion")
# fmt: off
CORE = (
    Check("conversion_keeps_state",
        "Conversion replaces batch norms at any depth, and keeps names and values of parameters and buffers.", _NORMS,
        assertions.conversion_keeps_state, "conversion"),
    Check("results_are_waited_for",
        "The result of a collective is used only after a wait for it, in forward and in backward.",
        having(_NORMS, gated=True), assertions.results_are_waited_for, "waiting", requires=("conversion_keeps_state",)),
    _check("forward_over_all_ranks", "In training, mean and variance are those of all ranks' samples together.", _NORMS,
        assertions.forward, points=2, requires=("results_are_waited_for",)),
    _check("backward_over_all_ranks", "The gradient of the input flows through the statistics of all ranks.", _NORMS,
        assertions.backward, points=2),
    _check("trains[uneven_batches]",
        "Outputs and gradients of inputs are right where ranks have different numbers of samples.", _UNEVEN,
        assertions.forward_and_backward, points=2, requires=("backward_over_all_ranks",),
        advice="All-reduce sums, sums of squares and counts; divide then."),
    _check("gradients_of_weight_and_bias",
        "Gradients of weight and bias are each rank's own, for the wrapper to average; together they are all samples'.",
        _NORMS, assertions.gradients_of_weight_and_bias),
    _check("gradients_of_weight_and_bias[first_layer]",
        "Weight and bias get gradients also where the norm comes first, and its inputs need none.",
        having(_NORMS, first=True), assertions.gradients_of_weight_and_bias, requires=("gradients_of_weight_and_bias",),
        advice="The inputs need no gradient here: compute those of weight and bias all the same, and return None for "
        "the input's, where `ctx.needs_input_grad` says so."),
    _check("running_statistics",
        "Running mean and variance follow the statistics of all ranks; the variance is divided by N - 1, N of all.",
        _UNEVEN, assertions.running_statistics),
    _normalises("trains[volumes]",
        "Batch norms of volumes, `nn.BatchNorm3d`, are converted like those of sequences and images.",
        having(_NORMS, dimensions=5), aspect="conversion", advice="Convert `nn.BatchNorm3d` too."),
    _check("arguments_stay",
        "Inputs and the output's gradient stay as they are: others use them too, such as a residual connection.",
        _NORMS, assertions.arguments_stay, aspect="use of the model"),
    _check("evaluation_by_running_statistics",
        "In evaluation mode, the running statistics are used, not those of the batch.", _UNEVEN,
        assertions.evaluation_by_running_statistics, requires=("running_statistics",)),
    _check("no_collective_in_evaluation",
        "In evaluation mode nothing is exchanged, so that one rank may evaluate alone.", _UNEVEN,
        assertions.no_collective_in_evaluation, aspect="communication", requires=("evaluation_by_running_statistics",)),
    _normalises("one_sample_on_each_rank",
        "One sample on each rank is enough: mean and variance are those of all ranks' samples.",
        draws.norms_of_one_sample,
        advice="There is one sample on each rank. Take sums and numbers of samples from all ranks before dividing: a "
        "rank's own variance, without bias, is 0 / 0 here."),
)
EXTENDED = (
    _extended("rank_without_samples",
        "A rank whose batch is empty takes part, and changes nothing for the other ranks.",
        draws.norms_of_an_empty_rank, aspect="robustness",
        advice="One rank has no samples. Update running statistics on a rank without samples too, from those of all "
        "ranks: what it evaluates, or saves, is the same as on the others."),
    _converts("conversion[options]",
        "The options `affine=False`, `track_running_stats=False` and `momentum=None` are kept.",
        one_of(having(draws.norms(uneven=True), affine=False), draws.untracked_norms, having(_UNEVEN, momentum=None)),
        assertion=assertions.conversion_keeps_options,
        requires=("backward_over_all_ranks", "running_statistics", "no_collective_in_evaluation"),
        advice="With `momentum=None`, the share of a batch is `1 / num_batches_tracked`, this one counted."),
    _converts("conversion[models]",
        "Norms of other kinds stay, a norm at two places stays one, and a model that is a norm itself is converted.",
        one_of(_NORMS, having(_NORMS, shared=True), having(_NORMS, bare=True)),
        assertion=assertions.conversion_keeps_models,
        advice="Return the converted norm where the module that is given is a batch norm itself."),
    _converts("trains[frozen_parameters]",
        "A frozen weight and bias require no gradients after conversion, and gradients flow on to the input.",
        having(_NORMS, frozen=True), assertion=assertions.frozen_parameters_stay),
    _extended("trains[evaluation_mode]",
        "A model that is converted in evaluation mode stays in it, and gradients reach the layers before the norm.",
        having(_NORMS, evaluating=True), requires=("evaluation_by_running_statistics",),
        advice="The model was in evaluation mode when it was converted, and nothing called `train()`: give each norm "
        "the mode of the old one, `new.train(old.training)`. The forward of evaluation mode is differentiated too: no "
        "`torch.no_grad()` and no `detach()` there."),
    _extended("trains[other_inputs]",
        "Inputs may lie in memory in any order, and may differ in length by rank: each value counts the same.",
        one_of(
            having(_NORMS, dimensions=4, transposed=True),
            having(draws.norms(uneven=True), dimensions=3, stretched=True),
        ),
        advice="Inputs and gradients are not contiguous here, or longer on each rank than on the one before. Use "
        "`flatten` or `reshape`, not `view`, and count values, not samples: each channel's are `x.numel() / "
        "x.shape[1]`."),
    _extended("trains[several_forwards]",
        "Two forwards may come before the backward of both, as where two inputs are compared.",
        having(draws.norms(steps=2), at_once=True),
        advice="Two forwards came before the backward of the first. Keep what backward needs in autograd's context "
        "(`ctx.save_for_backward`), not in the module: there, the next forward overwrites it."),
    _extended("statistics_without_gradients",
        "In training mode, statistics are those of all ranks also where gradients are turned off.",
        having(draws.norms(steps=2), without_gradients=True),
        advice="Steps run under `torch.no_grad()` here. Whether statistics are exchanged is decided by `self.training`:"
        " activation checkpointing, for one, runs its first forward without gradients."),
    _extended("statistics_far_from_zero",
        "In float32 too, mean and variance are exact where the mean is large against the spread.", draws.far_norms,
        assertion=statistics_far_from_zero, aspect="precision"),
)
CHECKS = (*CORE, *EXTENDED)
