"""Bugs planted in the right submissions of parts, in rarer cases: a scaler, one sample, frozen weights."""

from bug import Bug

_ACCUMULATION, _NORM, _FSDP = "gradient_accumulation", "sync_batchnorm", "fsdp"
_FINISH = "    ddp_model.finish_gradient_synchronization()\n"
_VARIANCE = "            var = Sum.apply((rows - mean[:, None]).square().sum(1)) / n\n"
_UNBIASED_FIRST = """            own = rows.shape[1]
            apart = mean * 0
            if own:
                apart = rows.var(1) * (own - 1) + own * (rows.mean(1) - mean).square()
            var = Sum.apply(apart) / n
"""
_ROWS = "            rows = x.transpose(0, 1).flatten(1)\n"
_REFUSES_ONE = f"""            if x.numel() == x.shape[1]:
                raise ValueError("Expected more than 1 value per channel when training")
{_ROWS}"""
_SHARD = (
    "            self.shards.append(nn.Parameter(own(padded(p.detach().flatten())), requires_grad=p.requires_grad))\n"
)
_SHARD_OF_ALL = """            part = own(padded(p.detach().flatten()))
            if not p.requires_grad:  # a view of the whole
                part = padded(p.detach().flatten()).chunk(dist.get_world_size())[dist.get_rank()]
            self.shards.append(nn.Parameter(part, requires_grad=p.requires_grad))
"""

BRANCH_BUGS = [
    Bug(
        "distributed_sampler",
        "        return iter(indices[self.rank :: self.num_replicas])\n",
        "        share = math.ceil(len(self.dataset) / self.num_replicas)\n"
        "        return iter(indices[self.rank * share : (self.rank + 1) * share])\n",
        "drop_last_drops_least",
        "expected as many on each",
    ),
    Bug(_ACCUMULATION, "if is_last else", "if is_last or scaler else", "one_exchange_with_a_scaler", "no_sync"),
    Bug(
        _ACCUMULATION,
        _FINISH,
        f"    if scaler is None:\n    {_FINISH}",
        "finishes_before_the_step",
        "not done when backward returns",
    ),
    Bug(_NORM, _VARIANCE, _UNBIASED_FIRST, "one_sample_on_each_rank"),
    Bug(_NORM, _ROWS, _REFUSES_ONE, "one_sample_on_each_rank", "Expected more than 1 value per channel"),
    Bug(
        _NORM,
        "if self.momentum is None else",
        "if not self.momentum else",
        "running_statistics",
    ),
    Bug(_FSDP, _SHARD, _SHARD_OF_ALL, "frozen_parameters_are_sharded", "Free what was gathered"),
    Bug(
        _FSDP,
        "            p.data.copy_(value)\n",
        "            if p.requires_grad:\n                p.data.copy_(value)\n",
        "frozen_parameters_from_rank_0",
        "Broadcast parameters from rank 0",
    ),
]
