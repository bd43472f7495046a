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


_ACCUMULATION = "gradient_accumulation"
_NORM = "sync_batchnorm"
_CHECKPOINT = "checkpoint"
_FSDP = "fsdp"
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
    Bug(
        _ACCUMULATION,
        "    ddp_model.finish",
        "        optimizer.step()\n    ddp_model.finish",
        "one_optimizer_step",
        "optimizer steps; expected 1",
    ),
    Bug(_ACCUMULATION, " / len(microbatches)", "", "equals_one_big_batch", "losses summed over micro-batches"),
    Bug(_ACCUMULATION, "if is_last else", "if False else", "equals_one_big_batch", "each rank trains alone"),
    Bug(
        _ACCUMULATION,
        "        is_last =",
        "        optimizer.zero_grad()\n        is_last =",
        "equals_one_big_batch",
        "only the last micro-batch used",
    ),
    Bug(_ACCUMULATION, "optimizer.zero_grad()", "pass", "steps_start_afresh", "zero_grad"),
    Bug(_ACCUMULATION, "if is_last else", "if True else", "one_exchange_of_gradients", "no_sync"),
    Bug(_ACCUMULATION, "index + 1 ==", "index + 1 >= -1 +", "one_exchange_of_gradients", "no_sync"),
    Bug(_ACCUMULATION, "scaler.step(optimizer)", "optimizer.step()", "scaler_used", "No inf checks were recorded"),
    Bug(_ACCUMULATION, "scaler.update()", "pass", "scaler_used", "already been called since the last update"),
    Bug(_ACCUMULATION, "    optimizer.zero", "    scaler = None\n    optimizer.zero", "scaler_used", "scaler.update()"),
    Bug(
        _ACCUMULATION,
        "scaler.step(optimizer)",
        "scaler.unscale_(optimizer)\n        optimizer.step()",
        "overflow_skips_the_step",
        "is to be skipped",
    ),
    Bug(
        _NORM, "        new.load_state_dict(module.state_dict())\n", "", "conversion_keeps_state", "conversion changed"
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
    Bug(
        _CHECKPOINT,
        '    model.load_state_dict(state["model"])\n',
        "",
        "model_comes_back",
        "what they were before loading",
    ),
    Bug(_CHECKPOINT, "model.state_dict()", "dict(model.named_parameters())", "model_comes_back", "Missing key"),
    Bug(
        _CHECKPOINT,
        'state["model"])',
        '{**model.state_dict(), **dict(list(state["model"].items())[:2])})',
        "model_comes_back",
        "",
    ),
    Bug(_CHECKPOINT, 'state["epoch"]', 'state["epoch"] + 1', "epoch_comes_back", "expected epoch"),
    Bug(
        _CHECKPOINT,
        '    optimizer.load_state_dict(state["optimizer"])\n',
        "",
        "training_goes_on",
        "the moments start from zero",
    ),
    Bug(_CHECKPOINT, "if scaler:", "if False:", "scaler_comes_back", "scaler.load_state_dict"),
    Bug(_CHECKPOINT, "if dist.get_rank() == 0:", "if True:", "one_rank_writes", "expected rank 0 alone"),
    Bug(
        _CHECKPOINT,
        "state = torch.load(path)",
        "state = torch.load(path)\n    assert state['ranks'] == dist.get_world_size()",
        "another_world_size",
        "AssertionError",
    ),
    Bug(_CHECKPOINT, 'f"{path}.{dist.get_rank()}"', "path", "survives_a_failed_save", ""),
    Bug(_FSDP, "torch.cat(parts)", "torch.cat(parts[::-1])", "gathers_whole_parameters", "in rank order"),
    Bug(_FSDP, "own(grad) / dist.get_world_size()", "own(grad)", "sharded_training_equals_one_process", "not summed"),
    Bug(_FSDP, "        dist.all_reduce(grad)\n", "", "sharded_training_equals_one_process", "averaged over the ranks"),
    Bug(_FSDP, "[dist.get_rank()].clone()", "[dist.get_rank()]", "parameters_are_sharded", "its share of"),
    Bug(
        _FSDP,
        "return own(grad) / dist.get_world_size()",
        "grad /= dist.get_world_size()\n        return grad.chunk(dist.get_world_size())[dist.get_rank()]",
        "gradients_are_sharded",
        "a view keeps all of it",
    ),
    Bug(
        _FSDP,
        "    pass",
        "    optimizer.state[fsdp_model] = {'whole': torch.zeros(5000)}",
        "optimizer_state_is_sharded",
        "bytes of optimizer state",
    ),
    Bug(_FSDP, "            dist.broadcast(p.data, 0)\n", "", "starts_from_rank_0", "is not rank 0's"),
    Bug(
        _FSDP,
        "self.whole(self.compute_dtype), x.to(self.compute_dtype or x.dtype)",
        "self.whole(None), x",
        "computes_in_the_dtype",
        "has another dtype",
    ),
    Bug(
        _FSDP,
        "        return fsdp_model.whole(None)",
        "        return fsdp_model.whole(fsdp_model.compute_dtype)",
        "keeps_full_precision",
        "kept as bfloat16",
    ),
]
