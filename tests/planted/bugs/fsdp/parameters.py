"""Bugs that only parameters of one kind show: frozen, tied, scalar, unused, of uneven sizes."""

from bug import Bug

_FSDP = "fsdp"
_WHOLE_AND_BACKWARD = """        return torch.cat(parts)[: shape.numel()].view(shape).to(dtype)

    @staticmethod
    def backward(ctx, grad):
        grad = padded(grad.to(ctx.dtype).flatten())
        dist.all_reduce(grad)
        return own(grad) / dist.get_world_size(), None, None


def padded(flat):
"""
_SHARD = (
    "            self.shards.append(nn.Parameter(own(padded(p.detach().flatten())), requires_grad=p.requires_grad))\n"
)
_SHARD_OF_ALL = """            part = own(padded(p.detach().flatten()))
            if not p.requires_grad:  # a view of the whole
                part = padded(p.detach().flatten()).chunk(dist.get_world_size())[dist.get_rank()]
            self.shards.append(nn.Parameter(part, requires_grad=p.requires_grad))
"""
BUGS = [
    Bug(
        _FSDP,
        "requires_grad=p.requires_grad",
        "requires_grad='bias' not in name",
        "trains[other_layers]",
        "`layers.2.bias`",
    ),
    Bug(_FSDP, "requires_grad=p.requires_grad", "requires_grad=True", "trains[frozen_parameters]"),
    Bug(
        _FSDP,
        "    return nn.functional.pad(flat, (0, -len(flat) % dist.get_world_size()))",
        "    even = flat[: len(flat) // dist.get_world_size() * dist.get_world_size()]\n"
        "    return nn.functional.pad(even, (0, -len(flat) % dist.get_world_size() + len(flat) - len(even)))",
        "trains[parameters_of_any_shape]",
        "cut off what was padded",
    ),
    Bug(
        _FSDP,
        "self.kept = dict(module.named_buffers())",
        "state = module.state_dict()\n"
        "        self.kept = {name: state.get(name, torch.zeros_like(b)) for name, b in module.named_buffers()}",
        "trains[buffers]",
        "those that are not persistent",
    ),
    Bug(
        _FSDP,
        "        self.kept =",
        "        for b in module.buffers():\n            dist.all_reduce(b)\n        self.kept =",
        "trains[buffers]",
        "neither sharded nor reduced",
    ),
    Bug(
        _FSDP,
        "        for name, p in module.named_parameters():\n",
        "        for part in module.modules():\n"
        "            for name, p in list(part.named_parameters(recurse=False)):\n"
        "                setattr(part, name, nn.Parameter(p.detach().clone(), p.requires_grad))\n"
        "        for name, p in module.named_parameters():\n",
        "trains[tied_parameters]",
        "Shard each parameter once",
    ),
    Bug(
        _FSDP,
        "whole[first] for",
        "whole[first] if name == first else whole[first].detach() for",
        "trains[tied_parameters]",
        "gather it for all of them",
    ),
    Bug(
        _FSDP,
        "        grad = padded(grad",
        "        if not grad.dim():\n            return own(padded(grad.flatten())), None, None\n"
        "        grad = padded(grad",
        "trains[scalar_parameter]",
        "average its gradient",
    ),
    Bug(
        _FSDP,
        "requires_grad=p.requires_grad",
        "requires_grad=p.requires_grad and p.dim() > 0",
        "trains[scalar_parameter]",
        "the parameter `scale`",
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
        "trains[other_layers]",
        "computes twice in each forward",
    ),
    Bug(
        _FSDP,
        "    pass",
        "    for shard in fsdp_model.shards:\n"
        "        if shard.requires_grad and shard.grad is None:\n"
        "            shard.grad = torch.zeros_like(shard)",
        "trains[unused_parameters]",
        "`branches.0.weight`",
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
        "parameters_are_sharded[uneven_or_frozen]",
        "its share of",
    ),
    Bug(
        _FSDP,
        "            value = p.detach().clone(memory_format=torch.contiguous_format)\n"
        "            dist.broadcast(value, 0)\n"
        "            p.data.copy_(value)\n",
        "            dist.broadcast(p.data.contiguous(), 0)\n",
        "trains[transposed_parameter]",
        "is not rank 0's",
    ),
    Bug(_FSDP, _SHARD, _SHARD_OF_ALL, "parameters_are_sharded[uneven_or_frozen]", "Free what was gathered"),
    Bug(
        _FSDP,
        "            p.data.copy_(value)\n",
        "            if p.requires_grad:\n                p.data.copy_(value)\n",
        "initial_broadcast",
        "Broadcast parameters from rank 0",
    ),
]
