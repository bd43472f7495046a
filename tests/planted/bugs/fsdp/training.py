"""Bugs that make sharded training differ from training in one process."""

from bug import Bug

_FSDP = "fsdp"
_FORWARD_AND_WHAT_FOLLOWS = (
    'return self.call("", self.inner, *args, **kwargs)\n\n\n'
    "def get_fsdp(module, compute_dtype=None):\n    return FSDP(module, compute_dtype)\n\n\n"
    "def fsdp_on_after_backward(fsdp_model, optimizer):\n    pass\n"
)
_RANK = "dist.get_rank()"
_LOCAL_RANK = '__import__("os").environ["LOCAL_RANK"]'
_ON_ITS_OWN_MACHINE = "is a rank's place on its own"
_RETURN = 'return self.call("", self.inner, *args, **kwargs)\n'
_LOOKS_FOR_TENSORS = f"""output = {_RETURN.removeprefix("return ")}
        if not any(isinstance(leaf, torch.Tensor) for leaf in torch.utils._pytree.tree_leaves(output)):
            for shard in self.shards:
                shard.register_hook(torch.zeros_like)
        return output
"""
_STILL_IN_BACKWARD = f"""if torch.is_grad_enabled():
            for shard in self.shards if self.__dict__.get("in_backward") else ():
                shard.register_hook(torch.zeros_like)
            self.__dict__["in_backward"] = True
            self.shards[0].register_hook(lambda grad: self.__dict__.update(in_backward=False))
        {_RETURN}"""
BUGS = [
    Bug(_FSDP, _RETURN, _LOOKS_FOR_TENSORS, "trains[other_arguments]", "hooks on tensors of the output"),
    Bug(_FSDP, _RETURN, _STILL_IN_BACKWARD, "trains[after_an_exception]", "A backward pass raised half way before"),
    Bug(_FSDP, "(p.detach().flatten())", "(p.detach().float().flatten())", "trains[float64]", "module's own dtype"),
    Bug(
        _FSDP,
        "        grad = padded(grad.to(ctx.dtype).flatten())\n        dist.all_reduce(grad)\n",
        "        matrix = grad.dim() > 1\n        grad = padded(grad.to(ctx.dtype).flatten())\n"
        "        if matrix:\n            dist.all_reduce(grad)\n",
        "training_equals_one_process",
        "averaged over the ranks",
    ),
    Bug(_FSDP, ", kwargs)", ")", "trains[keyword_arguments]"),
    Bug(
        _FSDP,
        "        whole = self.whole(self.compute_dtype, firsts.values())\n",
        "        kept = self.__dict__.setdefault('gathered', {})\n"
        "        whole = kept.pop(path, None) or self.whole(self.compute_dtype, firsts.values())\n"
        "        if not torch.is_grad_enabled():\n            kept[path] = whole\n",
        "trains[evaluation_between_steps]",
        "does not require grad",
    ),
    Bug(_FSDP, 'return self.call("",', 'self.zero_grad()\n        return self.call("",', "trains[accumulation]"),
    Bug(
        _FSDP,
        "return fsdp_model.whole(None, fsdp_model.shapes)\n",
        "whole = fsdp_model.whole(None, fsdp_model.shapes)\n"
        "        return {name.replace('weight', 'inner.weight'): value for name, value in whole.items()}\n",
        "gathers_whole_parameters",
        "under the bare module's own name",
    ),
    Bug(_FSDP, "torch.cat(parts)", "torch.cat(parts[::-1])", "gathers_whole_parameters", "in rank order"),
    Bug(_FSDP, "own(grad) / dist.get_world_size()", "own(grad)", "training_equals_one_process", "not summed"),
    Bug(_FSDP, "        dist.all_reduce(grad)\n", "", "training_equals_one_process", "averaged over the ranks"),
    Bug(
        _FSDP,
        "        dist.all_reduce(grad)\n",
        "        half = grad.half()\n        dist.all_reduce(half)\n        grad = half.to(grad.dtype)\n",
        "training_equals_one_process",
    ),
    Bug(
        _FSDP,
        "dist.all_gather(parts, shard.detach())",
        "dist.all_gather(parts, shard.detach(), async_op=True)",
        "results_are_waited_for",
        "Nobody waited at all for all_gather",
    ),
    Bug(
        _FSDP,
        "dist.all_reduce(grad)",
        "dist.all_reduce(grad, async_op=True)",
        "results_are_waited_for",
        "after step",
    ),
    Bug(_FSDP, "            p.data.copy_(value)\n", "", "initial_broadcast", "is not rank 0's"),
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
        "return {n: Gather.apply(shard, shape, dtype or shard.dtype) for (n, shape), shard in shards if n in names}",
        "whole = {n: Gather.apply(shard, size, dtype or shard.dtype) for (n, size), shard in shards if n in names}\n"
        "        if not torch.is_grad_enabled():\n"
        "            self.__dict__.pop('used', None)\n"
        "            return whole\n"
        "        used = self.__dict__.setdefault('used', {})\n"
        "        for name, value in whole.items():\n"
        "            value.data = used.setdefault(name, value.detach())\n"
        "        return whole",
        "training_equals_one_process",
        "gathered anew in the next forward",
    ),
    Bug(
        _FSDP,
        'return self.call("", self.inner, *args, **kwargs)\n',
        'output = self.call("", self.inner, *args, **kwargs)\n'
        "        number = self.__dict__['forwards'] = self.__dict__.get('forwards', 0) + 1\n"
        "        if output.requires_grad:\n"
        "            output.register_hook(lambda grad: grad * (number == self.__dict__['forwards']))\n"
        "        return output\n",
        "trains[several_forwards]",
        "needs each weight twice",
    ),
    Bug(
        _FSDP,
        "        named = {name.rpart",
        "        for value in whole.values():\n"
        "            if value.requires_grad and not self.training:\n"
        "                value.register_hook(lambda grad: grad * dist.get_world_size())\n"
        "        named = {name.rpart",
        "trains[evaluation_mode]",
        "in either mode",
    ),
    Bug(
        _FSDP,
        "        named = {name.rpart",
        "        if not torch.is_grad_enabled():\n"
        "            whole = self.__dict__.setdefault('evaluated', {}).setdefault(path, whole)\n"
        "        named = {name.rpart",
        "trains[evaluation_between_steps]",
        "Gather whole weights anew",
    ),
    Bug(
        _FSDP,
        _FORWARD_AND_WHAT_FOLLOWS,
        "if torch.is_grad_enabled():\n"
        "            self.earlier = {shard: shard.grad for shard in self.shards if shard.grad is not None}\n"
        "            for shard in self.earlier:\n"
        "                shard.grad = None\n"
        '        return self.call("", self.inner, *args, **kwargs)\n\n\n'
        "def get_fsdp(module, compute_dtype=None):\n    return FSDP(module, compute_dtype)\n\n\n"
        "def fsdp_on_after_backward(fsdp_model, optimizer):\n"
        "    for shard, grad in fsdp_model.earlier.items():\n"
        "        shard.grad = grad if shard.grad is None else shard.grad + grad\n",
        "trains[between_forward_and_backward]",
        "comes after forward here",
    ),
    Bug(
        "fsdp",
        f"flat.chunk(dist.get_world_size())[{_RANK}]",
        f"flat.chunk(dist.get_world_size())[int({_LOCAL_RANK})]",
        "on_two_machines",
        _ON_ITS_OWN_MACHINE,
    ),
]
