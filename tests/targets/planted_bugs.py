"""Bugs planted in the right submissions of `tests/conformance/parts`, each with the check that catches it first."""

from typing import NamedTuple


class Bug(NamedTuple):
    """One line of a right submission goes wrong: the first check to fail, and words that it says."""

    component: str
    old: str
    new: str
    check: str
    words: str

    def __str__(self):
        return f"{self.component}: {self.old[:30].strip()} becomes {self.new.strip()[:50] or 'nothing'}"


_EVALUATION = "evaluation"
_GENERATOR = "loader_generator"
_SAMPLER = "distributed_sampler"
BUGS = [
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
    Bug(_SAMPLER, "indices = (indices * total)[:total]", "", "equal_shares", "expected as many on each"),
    Bug(
        _SAMPLER,
        "return math.floor(share) if self.drop_last else math.ceil(share)",
        "return len(self.dataset)",
        "every_sample_once",
        "samples in all; expected",
    ),
    Bug(_SAMPLER, "else math.ceil(share)", "else math.floor(share)", "every_sample_once", "samples are never used"),
    Bug(_SAMPLER, "math.floor(share) if self.drop_last else ", "", "drop_last_drops_least", "2 times; expected"),
    Bug(
        _SAMPLER,
        "self.seed + self.epoch",
        "self.seed + self.epoch + self.rank",
        "seed_shared_by_ranks",
        "Ranks shuffle differently",
    ),
    Bug(_SAMPLER, ", generator=generator", "", "seed_shared_by_ranks", "Ranks shuffle differently"),
    Bug(_SAMPLER, "if self.shuffle:", "if False:", "shuffles", "gets its samples in order"),
    Bug(_SAMPLER, "self.epoch = epoch", "pass", "set_epoch_reshuffles", "in epochs 0 and 1"),
    Bug(_SAMPLER, "self.epoch = epoch", "self.epoch += epoch + 1", "epochs_repeat", "when it is set a second time"),
    Bug(_SAMPLER, "self.seed + self.epoch", "self.epoch", "seed_decides", "two different seeds"),
    Bug(
        _SAMPLER,
        "        total =",
        "        indices = indices[self.epoch :] + indices[: self.epoch]\n        total =",
        "no_shuffling_unless_asked",
        "expected the same",
    ),
    Bug(_EVALUATION, "dist.all_reduce(counts)", "pass", "global_accuracy", "never reduced"),
    Bug(
        _EVALUATION,
        "float(counts[0] / counts[1])",
        "100 * float(counts[0] / counts[1])",
        "global_accuracy",
        "a percentage",
    ),
    Bug(_EVALUATION, "len(y)])", "len(y)])\n            dist.all_reduce(counts)", "global_accuracy", ""),
    Bug(
        _EVALUATION,
        "    dist.all_reduce(counts)",
        "    counts /= counts[1].clone()\n    dist.all_reduce(counts)",
        "weighted_by_samples",
        "the mean of the ranks' accuracies",
    ),
    Bug(
        _EVALUATION,
        ".sum(), len(y)]",
        ".double().mean(), 1]",
        "weighted_by_samples",
        "the mean of the batches' accuracies",
    ),
    Bug(_EVALUATION, "    counts = torch", "    batches[0]\n    counts = torch", "ranks_with_fewer_batches", ""),
    Bug(_EVALUATION, "model.eval()", "pass", "in_evaluation_mode", "in training mode"),
    Bug(_EVALUATION, "model.train(was_training)", "pass", "leaves_the_mode", "in evaluation mode afterwards"),
    Bug(_EVALUATION, "torch.no_grad()", "torch.enable_grad()", "without_gradients", "torch.no_grad()"),
    Bug(
        _GENERATOR,
        "manual_seed(seed + dist.get_rank())",
        "set_state(torch.get_rng_state())",
        "reproducible",
        "shuffle differently",
    ),
    Bug(_GENERATOR, "seed + dist.get_rank()", "seed", "differs_by_rank", "seed + rank"),
    Bug(_GENERATOR, "seed + dist.get_rank()", "dist.get_rank()", "seed_decides", "the same stream"),
    Bug(
        _GENERATOR,
        "generator = torch",
        "torch.manual_seed(seed)\n    generator = torch",
        "leaves_the_global_generator",
        "of its own",
    ),
]
