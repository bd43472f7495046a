"""The checks of distributed evaluation, in the order in which they run."""

from functools import partial

from conformance.checks.check import Check
from conformance.checks.steps import global_generators_stay
from conformance.components.evaluation import assertions
from conformance.components.evaluation import scenarios as batches
from conformance.strategies.building_blocks import having

_TWICE = having(batches.even_evaluations, again=True)
_check = partial(Check, requires=("global_accuracy",))
_counts = partial(_check, assertion=assertions.global_accuracy, aspect="numbers")
_use = partial(_check, level="extended", aspect="use of the model")
# fmt: off
CHECKS = (
    Check("results_are_waited_for", "The result of a collective is used only after a wait for it.",
        having(batches.even_evaluations, gated=True), assertions.results_are_waited_for, "waiting"),
    _counts("global_accuracy", "Every rank gets the share of right samples among those of all ranks.",
        batches.even_evaluations, requires=("results_are_waited_for",)),
    _counts("weighted_by_samples",
        "Every sample counts the same, also where batches and ranks have different numbers of samples.",
        batches.uneven_evaluations,
        advice="All-reduce the sum of right samples and the sum of samples; divide then."),
    _counts("counts_anew", "A second evaluation, as after the next epoch, counts its own samples alone.", _TWICE,
        assertion=assertions.counts_anew),
    _counts("ranks_with_fewer_batches", "Ranks may have fewer batches than others, even none.",
        batches.ragged_evaluations, level="extended",
        advice="Reduce once, after all batches; a rank without any adds zero."),
    _use("evaluates",
        "The model is called in evaluation mode, so that dropout is off and batch statistics stay, without gradients.",
        batches.even_evaluations, assertions.evaluates),
    _use("modes_stay",
        "Every module is left in its mode, also a frozen norm that is in evaluation mode while the model trains.",
        _TWICE, assertions.modes_stay),
    _use("arguments_stay",
        "Parameters, their gradients, and whether gradients are turned on or off are left as they are.", _TWICE,
        assertions.arguments_stay),
    _use("global_generators_stay",
        "Evaluation leaves the global generators of random numbers as they were: torch's, Python's and NumPy's.",
        batches.even_evaluations, global_generators_stay, aspect="robustness",
        advice="Seed nothing in evaluation: training would draw the same dropout masks and augmentations after each."),
    _counts("counts_exactly",
        "The accuracy of a model in bfloat16 is as exact as any other's, whatever the number of samples.",
        batches.half_evaluations, level="extended", aspect="precision",
        advice="The model is in bfloat16, which has no odd number above 256: keep counts in int64 or float64."),
)
