"""What each wrapper promises, with its points: those of the assignment for the three wrappers that it asks for."""

from dataclasses import replace

from conformance.checks.aspect import Aspect

# fmt: off
_AVERAGED = Aspect("gradients are averaged", 1.5,
    ("runs_to_the_end", "results_are_waited_for", "gradients_averaged", "training_equals_one_process",
        "ranks_stay_identical"), essential=True)
_START = Aspect("ranks start equal", 0.5, ("initial_broadcast",))
_KINDS = Aspect("kinds of parameters and layers", 0.5,
    ("trains[frozen_parameters]", "trains[tied_parameters]", "trains[layers_in_another_order]",
        "trains[scalar_parameter]", "trains[transposed_parameter]", "trains[convolution]", "trains[other_layers]"))
_PRECISION = Aspect("precision", 0.5, ("trains[float32]", "trains[bfloat16]", "trains[mixed_dtypes]"))
_USE = Aspect("use of the model", 0.5,
    ("trains[one_rank]", "trains[clipped_gradients]", "trains[evaluation_between_steps]", "trains[uneven_batches]",
        "trains[zero_grad_in_place]", "trains[keyword_arguments]", "trains[everything_together]"))
_OVERLAP = Aspect("overlap with backward", 1.5, ("overlaps_backward", "sent_once"), essential=True)
_EACH = replace(_OVERLAP, checks=("overlaps_backward", "one_collective_per_parameter", "sent_once"))
_FLAT = Aspect("one flat tensor", 1,
    ("one_collective_per_dtype", "one_collective_per_dtype[two_dtypes]", "sent_once"), essential=True)
_BUCKETS = Aspect("buckets", 1.5,
    ("bucket_size_respected", "bucket_size_respected[unbounded]", "bucket_size_respected[frozen_between]"),
    essential=True)
# fmt: on


def _with(points: tuple[float, float, float, float, float], *promised: Aspect) -> tuple[Aspect, ...]:
    """Return the aspects that all wrappers have, with these points, and further ones."""
    common = (_AVERAGED, _START, _KINDS, _PRECISION, _USE)
    return (*(replace(one, points=some) for one, some in zip(common, points, strict=True)), *promised)


ASPECTS = {
    "naive_ddp": _with((2, 0.5, 1, 0.5, 1)),
    "flat_ddp": _with((1.5, 0.5, 0.75, 0.5, 0.75), _FLAT),
    "ddp_individual_parameters": _with((1.5, 0.5, 0.5, 0.5, 0.5), _EACH),
    "ddp_bucketed": _with((3, 1, 1, 0.5, 1), replace(_OVERLAP, points=2), _BUCKETS),
    "ddp": _with((1.5, 0.5, 0.75, 0.5, 0.75), replace(_OVERLAP, points=1)),
}
