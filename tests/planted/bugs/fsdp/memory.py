"""Bugs in what a rank keeps in memory, and for how long."""

from bug import Bug

_FSDP = "fsdp"
_FORWARD_AND_WHAT_FOLLOWS = (
    'return self.call("", self.inner, *args, **kwargs)\n\n\n'
    "def get_fsdp(module, compute_dtype=None):\n    return FSDP(module, compute_dtype)\n\n\n"
    "def fsdp_on_after_backward(fsdp_model, optimizer):\n    pass\n"
)
_RECOMPUTED = "                layer.forward = partial(checkpoint, call, use_reentrant=False)\n"
_RECOMPUTED_IN_TRAINING = """                layer.forward = lambda *args, call=call, **kwargs: (
                    checkpoint(call, *args, use_reentrant=False, **kwargs) if self.training else call(*args, **kwargs)
                )
"""
BUGS = [
    Bug(
        _FSDP,
        "nn.Parameter(own(padded(p.detach().flatten())), requires_grad=p.requires_grad)",
        "nn.Parameter(\n"
        "                padded(p.detach().flatten()).chunk(dist.get_world_size())[dist.get_rank()]\n"
        "                if isinstance(module.get_submodule(name.rpartition('.')[0]), nn.Embedding)\n"
        "                else own(padded(p.detach().flatten())),\n"
        "                requires_grad=p.requires_grad,\n"
        "            )",
        "parameters_are_sharded",
        "of `torch.nn`",
    ),
    Bug(
        _FSDP,
        _FORWARD_AND_WHAT_FOLLOWS,
        'output = self.call("", self.inner, *args, **kwargs)\n'
        "        for shard, value in zip(self.shards, self.whole(None, self.shapes).values(), strict=True):\n"
        "            flat = padded(value.detach().flatten())\n"
        "            shard.data = flat.chunk(dist.get_world_size())[dist.get_rank()]\n"
        "        return output\n\n\n"
        "def get_fsdp(module, compute_dtype=None):\n    return FSDP(module, compute_dtype)\n\n\n"
        "def fsdp_on_after_backward(fsdp_model, optimizer):\n"
        "    for shard in fsdp_model.shards:\n        shard.data = shard.detach().clone()\n",
        "weights_are_freed",
        "gather it anew",
    ),
    Bug(
        _FSDP,
        '        return self.call("",',
        '        everything = self.whole(None, self.shapes)  # noqa: F841\n        return self.call("",',
        "gathers_layer_by_layer",
        "two layers ahead",
    ),
    Bug(
        _FSDP,
        "return own(grad) / dist.get_world_size()",
        "Gather.past = [*getattr(Gather, 'past', []), own(grad)]\n"
        "        return Gather.past[-1] / dist.get_world_size()",
        "nothing_grows",
        "alive after each step",
    ),
    Bug(
        _FSDP,
        "partial(checkpoint, call, use_reentrant=False)",
        "call",
        "memory_is_given_back",
        "Autograd keeps",
    ),
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
        "state_is_sharded",
        "bytes of optimizer state",
    ),
    Bug(
        _FSDP,
        "    pass\n\n\ndef fsdp_gather_full_params(fsdp_model):\n",
        "    for shard in fsdp_model.shards:\n"
        "        whole = torch.cat([shard.detach()] * dist.get_world_size())\n"
        "        shard.data = whole.chunk(dist.get_world_size())[dist.get_rank()]\n\n\n"
        "def fsdp_gather_full_params(fsdp_model):\n"
        "    for shard in fsdp_model.shards:\n"
        "        shard.data = shard.detach().clone()\n",
        "parameters_are_sharded",
        "its share of",
    ),
    Bug(
        _FSDP,
        'module.to("meta")',
        "module",
        "nothing_whole_is_kept",
        "for their shapes",
    ),
    Bug(
        _FSDP,
        "        named = {name.rpart",
        "        self.__dict__.setdefault('last', {})[path] = {name: value.detach() for name, value in whole.items()}\n"
        "        named = {name.rpart",
        "nothing_whole_is_kept",
        "a cache of what was gathered",
    ),
    Bug(
        _FSDP,
        _FORWARD_AND_WHAT_FOLLOWS,
        'output = self.call("", self.inner, *args, **kwargs)\n'
        "        if output.requires_grad:\n"
        "            output.register_hook(self.widen)\n"
        "        return output\n\n"
        "    @torch.no_grad()\n"
        "    def widen(self, _):\n"
        "        for shard, value in zip(self.shards, self.whole(None, self.shapes).values(), strict=True):\n"
        "            shard.data = padded(value.flatten()).chunk(dist.get_world_size())[dist.get_rank()]\n\n\n"
        "def get_fsdp(module, compute_dtype=None):\n    return FSDP(module, compute_dtype)\n\n\n"
        "def fsdp_on_after_backward(fsdp_model, optimizer):\n"
        "    for shard in fsdp_model.shards:\n        shard.data = shard.detach().clone()\n",
        "weights_are_freed[in_backward]",
        "the memory of the whole model",
    ),
    Bug(
        _FSDP,
        "return FSDP(module, compute_dtype)\n",
        "made = FSDP(copy.deepcopy(module), compute_dtype)\n"
        "    made.register_forward_pre_hook(lambda *_: setattr(made, 'all', made.whole(None, made.shapes)))\n"
        "    made.register_forward_hook(lambda *_: delattr(made, 'all'))\n"
        "    return made\n",
        "gathers_layer_by_layer",
        "two layers ahead",
    ),
    Bug("fsdp", _RECOMPUTED, _RECOMPUTED_IN_TRAINING, "memory_is_given_back", "in evaluation mode"),
    Bug(
        _FSDP,
        "flat.chunk(dist.get_world_size())[dist.get_rank()].clone()",
        "flat.clone()",
        "parameters_are_sharded",
        "Nothing is sharded",
    ),
]
