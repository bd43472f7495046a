"""Bugs planted in a right FSDP, each with the check that catches it first."""

from bug import Bug

_FSDP = "fsdp"
FORWARD_AND_WHAT_FOLLOWS = (
    'return self.call("", self.inner, *args, **kwargs)\n\n\n'
    "def get_fsdp(module, compute_dtype=None):\n    return FSDP(module, compute_dtype)\n\n\n"
    "def fsdp_on_after_backward(fsdp_model, optimizer):\n    pass\n"
)
FSDP_BUGS = [
    Bug(_FSDP, "(p.detach().flatten())", "(p.detach().float().flatten())", "trains_in_float64", "module's own dtype"),
    Bug(_FSDP, "requires_grad=p.requires_grad", "requires_grad='bias' not in name", "biases", "`layers.2.bias`"),
    Bug(
        _FSDP,
        "        grad = padded(grad.to(ctx.dtype).flatten())\n        dist.all_reduce(grad)\n",
        "        matrix = grad.dim() > 1\n        grad = padded(grad.to(ctx.dtype).flatten())\n"
        "        if matrix:\n            dist.all_reduce(grad)\n",
        "sharded_training_equals_one_process",
        "averaged over the ranks",
    ),
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
    Bug(_FSDP, ", kwargs)", ")", "forward_keywords"),
    Bug(
        _FSDP,
        FORWARD_AND_WHAT_FOLLOWS,
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
        "memory_does_not_grow",
        "tensors alive after each step",
    ),
    Bug(
        _FSDP,
        "partial(checkpoint, call, use_reentrant=False)",
        "call",
        "memory_of_weights_is_given_back",
        "Autograd keeps",
    ),
    Bug(
        _FSDP,
        "        whole = self.whole(self.compute_dtype, firsts.values())\n",
        "        kept = self.__dict__.setdefault('gathered', {})\n"
        "        whole = kept.pop(path, None) or self.whole(self.compute_dtype, firsts.values())\n"
        "        if not torch.is_grad_enabled():\n            kept[path] = whole\n",
        "evaluation_between_steps",
        "does not require grad",
    ),
    Bug(_FSDP, 'return self.call("",', 'self.zero_grad()\n        return self.call("",', "accumulates_gradients"),
    Bug(_FSDP, "requires_grad=p.requires_grad", "requires_grad=True", "frozen_parameters_stay"),
    Bug(
        _FSDP,
        "return fsdp_model.whole(None, fsdp_model.shapes)\n",
        "whole = fsdp_model.whole(None, fsdp_model.shapes)\n"
        "        return {name.replace('weight', 'inner.weight'): value for name, value in whole.items()}\n",
        "gathers_whole_parameters",
        "under the bare module's own name",
    ),
    Bug(_FSDP, "torch.cat(parts)", "torch.cat(parts[::-1])", "gathers_whole_parameters", "in rank order"),
    Bug(_FSDP, "own(grad) / dist.get_world_size()", "own(grad)", "sharded_training_equals_one_process", "not summed"),
    Bug(_FSDP, "        dist.all_reduce(grad)\n", "", "sharded_training_equals_one_process", "averaged over the ranks"),
    Bug(
        _FSDP,
        "        dist.all_reduce(grad)\n",
        "        half = grad.half()\n        dist.all_reduce(half)\n        grad = half.to(grad.dtype)\n",
        "sharded_training_equals_one_process",
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
        "optimizer_state_is_sharded",
        "bytes of optimizer state",
    ),
    Bug(
        _FSDP,
        "dist.all_gather(parts, shard.detach())",
        "dist.all_gather(parts, shard.detach(), async_op=True)",
        "shards_are_waited_for",
        "Nobody waited at all for all_gather",
    ),
    Bug(
        _FSDP,
        "dist.all_reduce(grad)",
        "dist.all_reduce(grad, async_op=True)",
        "shards_are_waited_for",
        "after step",
    ),
    Bug(_FSDP, "            p.data.copy_(value)\n", "", "starts_from_rank_0", "is not rank 0's"),
    Bug(
        _FSDP,
        "self.whole(self.compute_dtype, firsts",
        "self.whole(None, firsts",
        "computes_in_the_dtype",
        "has another dtype",
    ),
    Bug(
        _FSDP,
        "        grad = padded(grad",
        "        if grad.dtype == torch.bfloat16 and dist.get_world_size() > 1:\n            return None, None, None\n"
        "        grad = padded(grad",
        "computes_in_the_dtype",
        "do they reach the shards",
    ),
    Bug(
        _FSDP,
        "        grad = padded(grad",
        "        if grad.dtype == torch.bfloat16:\n"
        "            return own(padded(grad.to(ctx.dtype).flatten())), None, None\n"
        "        grad = padded(grad",
        "computes_in_the_dtype",
        "averaged over the ranks",
    ),
    Bug(
        _FSDP,
        "fsdp_model.whole(None, ",
        "fsdp_model.whole(fsdp_model.compute_dtype, ",
        "keeps_full_precision",
        "Gather there in the shards' own dtype",
    ),
    Bug(
        _FSDP,
        "own(padded(p.detach().flatten()))",
        "own(padded(p.detach().to(compute_dtype or p.dtype).flatten()))",
        "keeps_full_precision",
        "kept as bfloat16",
    ),
    Bug(
        _FSDP,
        "    return nn.functional.pad(flat, (0, -len(flat) % dist.get_world_size()))",
        "    even = flat[: len(flat) // dist.get_world_size() * dist.get_world_size()]\n"
        "    return nn.functional.pad(even, (0, -len(flat) % dist.get_world_size() + len(flat) - len(even)))",
        "parts_of_any_shape",
        "cut off what was padded",
    ),
    Bug(
        _FSDP,
        "self.kept = dict(module.named_buffers())",
        "state = module.state_dict()\n"
        "        self.kept = {name: state.get(name, torch.zeros_like(b)) for name, b in module.named_buffers()}",
        "buffers_reach_forward",
        "those that are not persistent",
    ),
    Bug(
        _FSDP,
        "        self.kept =",
        "        for b in module.buffers():\n            dist.all_reduce(b)\n        self.kept =",
        "buffers_reach_forward",
        "neither sharded nor reduced",
    ),
    Bug(
        _FSDP,
        "        for name, p in module.named_parameters():\n",
        "        for part in module.modules():\n"
        "            for name, p in list(part.named_parameters(recurse=False)):\n"
        "                setattr(part, name, nn.Parameter(p.detach().clone(), p.requires_grad))\n"
        "        for name, p in module.named_parameters():\n",
        "tied_parameters",
        "Shard each parameter once",
    ),
    Bug(
        _FSDP,
        "whole[first] for",
        "whole[first] if name == first else whole[first].detach() for",
        "tied_parameters",
        "gather it for all of them",
    ),
    Bug(
        _FSDP,
        "        grad = padded(grad",
        "        if not grad.dim():\n            return own(padded(grad.flatten())), None, None\n"
        "        grad = padded(grad",
        "scalar_parameter",
        "average its gradient",
    ),
    Bug(
        _FSDP,
        "requires_grad=p.requires_grad",
        "requires_grad=p.requires_grad and p.dim() > 0",
        "scalar_parameter",
        "the parameter `scale`",
    ),
    Bug(
        _FSDP,
        "return {n: Gather.apply(shard, shape, dtype or shard.dtype) for (n, shape), shard in shards if n in names}",
        "whole = {n: Gather.apply(shard, size, dtype or shard.dtype) for (n, size), shard in shards if n in names}\n"
        "        if not torch.is_grad_enabled():\n"
        "            self.__dict__.pop('used', None)\n"
        "            return whole\n"
        "        used = self.__dict__.setdefault('used', {})\n"
        "        for name, value in whole.items():\n"
        "            value.data = used.setdefault(name, value.detach())\n"
        "        return whole",
        "sharded_training_equals_one_process",
        "gathered anew in the next forward",
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
]
