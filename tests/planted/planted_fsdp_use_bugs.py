"""Bugs planted in a right FSDP that show in how the model is used, or in what is kept where nobody looks."""

from bug import Bug
from planted_fsdp_bugs import FORWARD_AND_WHAT_FOLLOWS

_FSDP = "fsdp"
_WHOLE_AND_BACKWARD = """        return torch.cat(parts)[: shape.numel()].view(shape).to(dtype)

    @staticmethod
    def backward(ctx, grad):
        grad = padded(grad.to(ctx.dtype).flatten())
        dist.all_reduce(grad)
        return own(grad) / dist.get_world_size(), None, None


def padded(flat):
"""
FSDP_USE_BUGS = [
    Bug(
        _FSDP,
        'return self.call("", self.inner, *args, **kwargs)\n',
        'output = self.call("", self.inner, *args, **kwargs)\n'
        "        number = self.__dict__['forwards'] = self.__dict__.get('forwards', 0) + 1\n"
        "        if output.requires_grad:\n"
        "            output.register_hook(lambda grad: grad * (number == self.__dict__['forwards']))\n"
        "        return output\n",
        "several_forwards_one_backward",
        "needs each weight twice",
    ),
    Bug(
        _FSDP,
        "        named = {name.rpart",
        "        def once(name, grad):\n"
        "            task, before = torch._C._current_graph_task_id(), getattr(self, f'pass of {path}.{name}', None)\n"
        "            setattr(self, f'pass of {path}.{name}', task)\n"
        "            return grad * (before != task)\n\n"
        "        for name, value in whole.items():\n"
        "            if value.requires_grad:\n"
        "                value.register_hook(partial(once, name))\n"
        "        named = {name.rpart",
        "layer_used_twice",
        "computes twice in each forward",
    ),
    Bug(
        _FSDP,
        "        named = {name.rpart",
        "        for value in whole.values():\n"
        "            if value.requires_grad and not self.training:\n"
        "                value.register_hook(lambda grad: grad * dist.get_world_size())\n"
        "        named = {name.rpart",
        "trains_in_evaluation_mode",
        "in either mode",
    ),
    Bug(
        _FSDP,
        "    pass",
        "    for shard in fsdp_model.shards:\n"
        "        if shard.requires_grad and shard.grad is None:\n"
        "            shard.grad = torch.zeros_like(shard)",
        "unused_everywhere",
        "`branches.0.weight`",
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
        FORWARD_AND_WHAT_FOLLOWS,
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
        "weights_are_freed_in_backward",
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
    Bug(
        _FSDP,
        f"{_WHOLE_AND_BACKWARD}"
        "    return nn.functional.pad(flat, (0, -len(flat) % dist.get_world_size()))\n\n\n"
        "def own(flat):\n"
        "    return flat.chunk(dist.get_world_size())[dist.get_rank()].clone()\n",
        "        if shard.numel() == shape.numel():\n"
        "            return shard.detach().view(shape).to(dtype, copy=True)\n"
        f"{_WHOLE_AND_BACKWARD}"
        "    return flat\n\n\n"
        "def own(flat):\n"
        "    if len(flat) % dist.get_world_size():\n"
        "        return flat.clone()\n"
        "    return flat.chunk(dist.get_world_size())[dist.get_rank()].clone()\n",
        "uneven_parameters_are_sharded",
        "its share of",
    ),
    Bug(
        _FSDP,
        "        named = {name.rpart",
        "        if not torch.is_grad_enabled():\n"
        "            whole = self.__dict__.setdefault('evaluated', {}).setdefault(path, whole)\n"
        "        named = {name.rpart",
        "evaluation_between_steps",
        "Gather whole weights anew",
    ),
    Bug(
        _FSDP,
        "            value = p.detach().clone(memory_format=torch.contiguous_format)\n"
        "            dist.broadcast(value, 0)\n"
        "            p.data.copy_(value)\n",
        "            dist.broadcast(p.data.contiguous(), 0)\n",
        "non_contiguous_parameter",
        "is not rank 0's",
    ),
    Bug(
        _FSDP,
        FORWARD_AND_WHAT_FOLLOWS,
        "if torch.is_grad_enabled():\n"
        "            self.earlier = {shard: shard.grad for shard in self.shards if shard.grad is not None}\n"
        "            for shard in self.earlier:\n"
        "                shard.grad = None\n"
        '        return self.call("", self.inner, *args, **kwargs)\n\n\n'
        "def get_fsdp(module, compute_dtype=None):\n    return FSDP(module, compute_dtype)\n\n\n"
        "def fsdp_on_after_backward(fsdp_model, optimizer):\n"
        "    for shard, grad in fsdp_model.earlier.items():\n"
        "        shard.grad = grad if shard.grad is None else shard.grad + grad\n",
        "cleared_after_forward",
        "comes after forward here",
    ),
]
