"""Bugs in param groups: how they are made, added and listed."""

from functools import partial

from bug import Bug

_bug = partial(Bug, "sharded_optimizer")
_SHARDED = "sharded_optimizer"
_FORWARD = "                local_group.update(options_of(self.param_groups[number]))\n"
_MINE = "        if mine:\n"
_ZEROS_AS_DEFAULTS = """                options = options_of(self.param_groups[number]).items()
                local_group.update((name, value or self.kwargs.get(name, value)) for name, value in options)
"""
_OPTIONS = f"""        if self.local is not None:
            for number, local_group in self.local_group.items():
{_FORWARD}"""
_ZIPPED = """        if self.local is not None:
            for group, local_group in zip(self.param_groups, self.local.param_groups):
                local_group.update(options_of(group))
"""
_SENT = """        flats = {}
        for param, rank in self.owner.items():
            flats.setdefault((rank, param.dtype, param.device), []).append(param)
        for (rank, *_), params in flats.items():
            flat = torch.cat([p.detach().reshape(-1) for p in params])
            dist.broadcast(flat, src=rank)
            for param, piece in zip(params, flat.split([p.numel() for p in params]), strict=True):
                param.detach().copy_(piece.view_as(param))
"""
_LAST_GROUP_AWAITED = """        for group in self.param_groups:
            sent = []
            for p in group["params"]:
                value = p.detach().contiguous()
                sent.append((p, value, dist.broadcast(value, src=self.owner[p], async_op=True)))
        for p, value, work in sent:
            work.wait()
            p.detach().copy_(value)
"""
_OWNED = """        if mine:
            self.add_local_group({**options_of(group), "params": mine})
"""
_OWNED_ALONE = f"""        group["params"] = mine
{_OWNED}
    def zero_grad(self, set_to_none=True):
        for p in self.owner:
            if p.grad is not None:
                p.grad = None if set_to_none else torch.zeros_like(p)
"""
_CLEAR = "    def send_parameters(self):\n"
_PASSES_BY_FROZEN = f"""    def zero_grad(self, set_to_none=True):
        for p in self.owner:
            if p.requires_grad and p.grad is not None:
                p.grad = None if set_to_none else p.grad.zero_()

{_CLEAR}"""
_GROUP = "        group = self.param_groups[-1]\n"
_GROUP_OF_A_DTYPE = f"{_GROUP}        self.dtype = group['params'][0].dtype\n"
BUGS = [
    _bug(
        _FORWARD,
        "                local_group.update(options_of(self.param_groups[0]))\n",
        "groups[own_options]",
        "first group's options everywhere",
    ),
    _bug(
        "kwargs).defaults)\n",
        "kwargs).defaults)\n        self.add_local_group = lambda group: None\n",
        "groups[added_before_training]",
        "added group never trained",
    ),
    _bug(
        _MINE,
        "        if mine and not (self.local is not None and self.local.state):\n",
        "groups[added_during_training]",
        "added group never trained",
    ),
    _bug(
        "            self.local.add_param_group(group)\n",
        "            self.local = self.optimizer_cls([*self.local.param_groups, group], **self.kwargs)\n",
        "groups[added_during_training]",
        "state lost",
    ),
    _bug(
        "            self.local.step()\n",
        "            assert all(p.grad is not None for p in self.owner)\n            self.local.step()\n",
        "trains[frozen_parameters]",
        "AssertionError",
    ),
    _bug(
        'for p in group["params"] if self.owner[p] == dist.get_rank()]',
        'for p in group["params"] if self.owner[p] == dist.get_rank() and p.requires_grad]',
        "trains[unfreezing_later]",
        "unfrozen parameter never trained",
    ),
    _bug(
        "        if mine:\n",
        "        if mine and (self.local is not None or len(self.param_groups) == 1):\n",
        "groups[smaller_than_the_world]",
        "were never updated",
    ),
    _bug(
        "kwargs).defaults)\n",
        "kwargs).defaults)\n        self.defaults = options_of(self.param_groups[0])\n",
        "groups[added_with_the_defaults]",
        "first group's options everywhere",
    ),
    _bug(
        "kwargs).defaults)\n",
        "kwargs).defaults)\n        if self.local is None:\n            self.add_local_group = lambda group: None\n",
        "groups[small_ones_added]",
        "",
    ),
    _bug(_OPTIONS, _ZIPPED, "groups[smaller_than_the_world]", "first group's options everywhere"),
    _bug(
        "        super().add_param_group(param_group)\n",
        "        self.count = sum(p.numel() for p in param_group['params'])\n"
        "        super().add_param_group(param_group)\n",
        "groups[other_kinds]",
        "",
    ),
    _bug(
        "        super().add_param_group(param_group)\n",
        "        self.changed = [self.defaults[key] for key in param_group if key != 'params']\n"
        "        super().add_param_group(param_group)\n",
        "groups[other_kinds]",
        "KeyError",
    ),
    _bug(_FORWARD, _ZEROS_AS_DEFAULTS, "groups[own_options]"),
    _bug(_SENT, _LAST_GROUP_AWAITED, "results_are_waited_for[groups]", "Nobody waited at all for broadcast"),
    _bug(_OWNED, _OWNED_ALONE, "param_groups_hold_all", "with other parameters on each rank"),
    _bug(
        _OWNED,
        _OWNED_ALONE.replace("= mine", "= list(mine)"),
        "overflow_reaches_every_rank",
        "looks for infinite gradients in",
    ),
    Bug(_SHARDED, _CLEAR, _PASSES_BY_FROZEN, "trains[unfreezing_later]"),
    Bug(_SHARDED, _GROUP, _GROUP_OF_A_DTYPE, "groups[other_kinds]", "IndexError"),
    _bug(
        _OWNED,
        _OWNED.replace("if mine:", "if mine and len(self.param_groups) == 1:"),
        "groups[own_options]",
        "only the first group trained",
    ),
]
