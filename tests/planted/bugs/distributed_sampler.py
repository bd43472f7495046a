"""Bugs in how a sampler shuffles a dataset and shares it out."""

from bug import Bug

_SAMPLER = "distributed_sampler"
_SHARE = "        return iter(indices[self.rank :: self.num_replicas])\n"
_ITS_OWN_ITERATOR = """        self.rest = getattr(self, "rest", None) or indices[self.rank :: self.num_replicas]
        while self.rest:
            yield self.rest.pop(0)
"""
_SHUFFLED = """            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            indices = torch.randperm(len(indices), generator=generator).tolist()
"""
_TURNED = """            generator = torch.Generator().manual_seed(self.seed)
            indices = torch.randperm(len(indices), generator=generator).tolist()
            indices = indices[self.epoch % 12 :] + indices[: self.epoch % 12]
"""
BUGS = [
    Bug(_SAMPLER, "indices = list(islice(cycle(indices), total))", "", "equal_shares", "expected as many on each"),
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
    Bug(_SAMPLER, "self.epoch = epoch", "self.epoch = min(epoch, 1)", "set_epoch_reshuffles", "in epochs 1 and 2"),
    Bug(_SAMPLER, "self.epoch = epoch", "self.epoch += epoch + 1", "reproducible", "when it is set a second time"),
    Bug(_SAMPLER, "self.seed + self.epoch", "self.epoch", "seed_decides", "two different seeds"),
    Bug(
        _SAMPLER,
        "        total =",
        "        indices = indices[self.epoch :] + indices[: self.epoch]\n        total =",
        "no_shuffling_unless_asked",
        "expected the same",
    ),
    Bug(
        _SAMPLER,
        "self.epoch = epoch\n\n    def __iter__(self):",
        "self.epoch = epoch\n        self.once = self.order()\n\n    def __iter__(self):\n        return self.once\n\n"
        "    def order(self):",
        "starts_anew",
        "gets none in a second iteration",
    ),
    Bug(_SAMPLER, "self.drop_last, self.epoch =", "self.drop_last, _ =", "starts_anew", "'epoch'"),
    Bug(_SAMPLER, "drop_last, 0", "drop_last, 1", "starts_anew", "before any `set_epoch`"),
    Bug(
        _SAMPLER,
        "            indices = torch.randperm(len(indices), generator=generator).tolist()",
        "            for share in [slice(rank, None, self.num_replicas) for rank in range(self.num_replicas)]:\n"
        "                order = torch.randperm(len(indices[share]), generator=generator)\n"
        "                indices[share] = [indices[share][i] for i in order]",
        "set_epoch_reshuffles[everything]",
        "only their order changes",
    ),
    Bug(
        _SAMPLER,
        "indices = list(islice(cycle(indices), total))",
        "indices = indices if self.shuffle and self.drop_last else list(islice(cycle(indices), total))",
        "set_epoch_reshuffles[everything]",
        "drop the rest before sharing out",
    ),
    Bug(
        _SAMPLER,
        "range(len(self.dataset))",
        "range(min(len(self.dataset), len(self) * self.num_replicas))",
        "set_epoch_reshuffles[everything]",
        "leaves out the same",
    ),
    Bug(
        _SAMPLER,
        "self.rank = dataset, num_replicas, rank",
        "self.rank = dataset, torch.distributed.get_world_size(), torch.distributed.get_rank()",
        "shares_of_other_replicas",
        "Use the arguments",
    ),
    Bug(_SAMPLER, "torch.Generator().manual_seed", "torch.manual_seed", "global_generators_stay", "torch's"),
    Bug(
        _SAMPLER,
        "indices = torch.randperm(len(indices), generator=generator).tolist()",
        "__import__('random').seed(self.seed + self.epoch)\n            __import__('random').shuffle(indices)",
        "global_generators_stay",
        "Python's `random`",
    ),
    Bug(
        _SAMPLER,
        "= shuffle, seed,",
        "= shuffle, seed + int(__import__('time').time()) // 86400,",
        "reproducible[another_run]",
        "`time.time()`",
    ),
    Bug(
        _SAMPLER,
        "        self.dataset, self.num_replicas",
        "        seed = torch.tensor(seed + __import__('os').getpid())\n"
        "        torch.distributed.broadcast(seed, src=0)\n"
        "        seed = int(seed)\n"
        "        self.dataset, self.num_replicas",
        "reproducible[another_run]",
        "Seed with seed + epoch, and with nothing else",
    ),
    Bug(
        _SAMPLER,
        "list(islice(cycle(indices), total))",
        "(indices + indices[: total - len(indices)])[:total]",
        "every_sample_once[few_or_many]",
        "again and again where there are few",
    ),
    Bug(_SAMPLER, _SHARE, _ITS_OWN_ITERATOR, "starts_anew", "return a new iterator"),
    Bug(_SAMPLER, _SHUFFLED, _TURNED, "set_epoch_reshuffles[everything]", "come after the same one"),
    Bug(
        _SAMPLER,
        _SHARE,
        "        return iter(index % 2**16 for index in indices[self.rank :: self.num_replicas])\n",
        "every_sample_once[few_or_many]",
        "keep indices in Python's int",
    ),
    Bug(
        _SAMPLER,
        "        self.epoch = epoch\n",
        "        self.epoch = self.epoch + 1 if epoch else 0\n",
        "reproducible",
        "from a new sampler",
    ),
    Bug(
        "distributed_sampler",
        "        return iter(indices[self.rank :: self.num_replicas])\n",
        "        share = math.ceil(len(self.dataset) / self.num_replicas)\n"
        "        return iter(indices[self.rank * share : (self.rank + 1) * share])\n",
        "drop_last_drops_least",
        "expected as many on each",
    ),
]
