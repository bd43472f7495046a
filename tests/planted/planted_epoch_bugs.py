"""Bugs planted in the right sampler, evaluation and generator: what shows in a later epoch, a long run, a large set."""

from bug import Bug

_SAMPLER, _EVALUATION, _GENERATOR = "distributed_sampler", "evaluation", "loader_generator"
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
EPOCH_BUGS = [
    Bug(_SAMPLER, _SHARE, _ITS_OWN_ITERATOR, "starts_over", "goes on where it was left"),
    Bug(_SAMPLER, _SHUFFLED, _TURNED, "epochs_have_other_neighbours", "come after the same one"),
    Bug(
        _SAMPLER,
        _SHARE,
        "        return iter(index % 2**16 for index in indices[self.rank :: self.num_replicas])\n",
        "many_samples",
        "16 bits hold 65,536",
    ),
    Bug(
        _SAMPLER,
        "        self.epoch = epoch\n",
        "        self.epoch = self.epoch + 1 if epoch else 0\n",
        "epochs_repeat",
        "from a new sampler",
    ),
    Bug(
        _EVALUATION,
        "(model(x).argmax(1) == y).sum()",
        "(model(x).softmax(1)[range(len(y)), y] > 0.5).sum()",
        "global_accuracy",
        "samples are right",
    ),
    Bug(
        _EVALUATION,
        "    model.eval()\n",
        "    model.eval()\n    torch.manual_seed(0)\n",
        "leaves_the_global_generators",
        "Seed nothing in evaluation",
    ),
    Bug(
        _EVALUATION,
        "    model.eval()\n",
        "    model.eval()\n    model.float().double()\n",
        "leaves_the_parameters",
        "a parameter's numbers",
    ),
    Bug(
        _GENERATOR,
        "    generator.manual_seed(seed + dist.get_rank())\n",
        "    generator.manual_seed(seed)\n    torch.randint(2**31, (dist.get_rank(),), generator=generator)\n",
        "streams_are_apart",
        "begin at different places in it",
    ),
]
