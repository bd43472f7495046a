"""Bugs when a model is wrapped: rank 0 does not broadcast all values, or wrapping changes other state."""

from bug import Bug

_NAIVE = "naive_ddp"
_FLAT = "flat_ddp"
_EACH = "ddp_individual_parameters"
_DDP = "ddp"
_BUCKETED = "ddp_bucketed"
_TRAINABLE = "    def trainable(self):\n"
_LOADS_WHAT_IT_KNOWS = """    def load_state_dict(self, state, **kwargs):
        return self.module.load_state_dict(state, strict=False)

"""
_LOADS_OTHER_NAMES = """    def load_state_dict(self, state, **kwargs):
        return self.module.load_state_dict(state)

"""
_ASSIGNS_LOADED = """    def load_state_dict(self, state, **kwargs):
        return super().load_state_dict(state, assign=True)

"""
_TO_THE_MODEL = "        self.module = module\n"
_CALL = "return self.module(*args, **kwargs)"
_BUFFERS = "            copy_from_rank0(self.module.buffers())\n"
_FORWARD = f"""        if self.training and torch.is_grad_enabled():
{_BUFFERS}        {_CALL}
"""
_SUMMED_BUFFERS = "            for buffer in self.module.buffers():\n                dist.all_reduce(buffer)\n"
_COPIED = "        copy_from_rank0([*module.parameters(), *module.buffers()])\n"
_UNAWAITED_BUFFERS = """        copy_from_rank0(module.parameters())
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0, async_op=True)
"""
BUGS = [
    *(
        Bug(
            wrapper,
            "copy_from_rank0([*module.parameters(), *module.buffers()])",
            "copy_from_rank0(module.buffers())",
            "initial_broadcast",
            "Initial values are not broadcast",
        )
        for wrapper in (_NAIVE, _FLAT, _EACH, _BUCKETED, _DDP)
    ),
    Bug(
        _NAIVE,
        "        copy_from_rank0([*module.parameters(), *module.buffers()])\n",
        "        for p in module.parameters():\n            p.grad = torch.zeros_like(p) if p.requires_grad else None\n"
        "        copy_from_rank0([*module.parameters(), *module.buffers()])\n",
        "arguments_stay",
        "had a gradient already",
    ),
    Bug(
        _EACH,
        "                param.register_post_accumulate_grad_hook(self.on_gradient)\n",
        "                BucketedDDP.newest = self\n"
        "                param.register_post_accumulate_grad_hook(lambda p: BucketedDDP.newest.on_gradient(p))\n",
        "two_side_by_side",
        "KeyError",
    ),
    Bug(
        _NAIVE,
        "dist.broadcast(value",
        "0 and dist.broadcast(value",
        "initial_broadcast",
        "Initial values are not broadcast",
    ),
    Bug(
        _DDP,
        "[*module.parameters(), *module.buffers()]",
        "module.parameters()",
        "trains[buffers]",
        "`module.buffers()`",
    ),
    Bug(
        _FLAT,
        "        tensor.data.copy_(value)\n",
        "        if tensor.is_floating_point():\n"
        "            tensor.data.copy_(value)\n"
        "        else:\n"
        "            tensor.data = value.double()\n",
        "trains[buffers]",
        "in its own dtype",
    ),
    Bug(_NAIVE, _TRAINABLE, _LOADS_WHAT_IT_KNOWS + _TRAINABLE, "trains[loaded_weights]", "loaded weights not used"),
    Bug(
        _EACH,
        _TRAINABLE,
        _LOADS_OTHER_NAMES + _TRAINABLE,
        "trains[loaded_weights]",
        "lack the prefix",
    ),
    Bug(_BUCKETED, _TRAINABLE, _ASSIGNS_LOADED + _TRAINABLE, "trains[loaded_weights]", "without `assign=True`"),
    Bug(
        _NAIVE,
        _TO_THE_MODEL,
        "        torch.manual_seed(0)  # so that ranks draw alike\n" + _TO_THE_MODEL,
        "global_generators_stay",
        "another state afterwards: torch's",
    ),
    Bug(
        _DDP,
        _TO_THE_MODEL,
        "        import random\n        random.shuffle(list(module.parameters()))\n" + _TO_THE_MODEL,
        "global_generators_stay",
        "Python's `random`",
    ),
    Bug(_NAIVE, _FORWARD, _FORWARD.replace(_BUFFERS, _SUMMED_BUFFERS), "trains[buffers]", "or copy rank 0's"),
    Bug(_NAIVE, _COPIED, _UNAWAITED_BUFFERS, "trains[buffers]", "`module.buffers()`"),
    Bug(
        "naive_ddp",
        " / dist.get_world_size()",
        ' / int(__import__("os").environ["LOCAL_WORLD_SIZE"])',
        "on_two_machines",
        "`LOCAL_WORLD_SIZE` counts the ranks there",
    ),
]
