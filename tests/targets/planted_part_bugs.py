"""Bugs planted in the right submissions of `tests/conformance/parts`, each with the check that catches it first."""

from bug import Bug
from planted_loop_bugs import LOOP_BUGS

_NORM = "sync_batchnorm"
PART_BUGS = [
    Bug("overhead_model", "s / (n_b * w)", "s / w", "overhead_after_backward", "all gradients, not those of one"),
    Bug("overhead_model", "n_b * o", "o", "overhead_after_backward", "the overhead of one call"),
    Bug(
        "overhead_model",
        "return math.sqrt(s * w * o)",
        "return math.sqrt(s / (w * o))",
        "bucket_size_at_the_optimum",
        "the number of buckets",
    ),
    Bug("overhead_model", "return math.sqrt(s * w * o)", "pass", "bucket_size_at_the_optimum", "gave no number"),
    Bug(
        _NORM, "        new.load_state_dict(module.state_dict())\n", "", "conversion_keeps_state", "conversion changed"
    ),
    Bug(
        _NORM,
        "dist.all_reduce(x)",
        "dist.all_reduce(x, async_op=True)",
        "statistics_are_waited_for",
        "Nobody waited at all for all_reduce",
    ),
    Bug(
        _NORM,
        "dist.all_reduce(grad)",
        "dist.all_reduce(grad, async_op=True)",
        "statistics_are_waited_for",
        "the gradient of the input",
    ),
    Bug(_NORM, "        dist.all_reduce(x)\n", "", "forward_over_all_ranks", "each rank's own statistics"),
    Bug(_NORM, "convert_sync_batchnorm(child)", "child", "forward_over_all_ranks", "each rank's own statistics"),
    Bug(_NORM, "n = moments[-1].detach()", "n = count * dist.get_world_size()", "forward_of_uneven_batches", ""),
    Bug(_NORM, "        dist.all_reduce(grad)\n", "", "backward_over_all_ranks", "in backward too"),
    Bug(_NORM, "var * n / (n - 1)", "var", "running_statistics", "divided by N, not by N - 1"),
    Bug(
        _NORM,
        "            mean, var = self",
        "            dist.barrier()\n            mean, var = self",
        "no_collective_in_evaluation",
        "collectives; expected none",
    ),
    Bug(_NORM, "y if self.weight is None else", "", "without_weight_and_statistics", ""),
    Bug(
        _NORM,
        "(moments[:-1] / n)",
        "((moments / n).detach() + (moments - moments.detach()) / count / dist.get_world_size())[:-1]",
        "backward_of_uneven_batches",
        "the number of samples of all ranks",
    ),
    Bug(
        _NORM,
        "        return new",
        "        _ = affine and new.weight.register_hook(Sum.apply)\n        return new",
        "gradients_of_weight_and_bias",
        "Every rank has the sum over all",
    ),
    Bug(
        _NORM,
        "if self.training or self.running_mean is None:",
        "if True:",
        "evaluation_by_running_statistics",
        "in evaluation mode",
    ),
    Bug(
        _NORM,
        "            rows = x",
        "            assert len(x)\n            rows = x",
        "rank_without_samples",
        "AssertionError",
    ),
    *LOOP_BUGS,
]
