"""Bugs in one step of the sharded optimizer, and in how its result is sent."""

from functools import partial

from bug import Bug

_bug = partial(Bug, "sharded_optimizer")
_SHARDED = "sharded_optimizer"
_STEP = "            self.local.step()\n        self.send_parameters()\n"
_INIT = "        self.optimizer_cls = optimizer_cls\n"
_FLAT = "            flat = torch.cat([p.detach().reshape(-1) for p in params])\n"
_OWNED = "            self.owner[param] = rank\n"
_GRADIENTS_OF_BACKWARD = f"""{_OWNED}            if param.requires_grad:
                param.register_post_accumulate_grad_hook(lambda p: setattr(p, "early", p.grad.clone()))
            self.register_step_pre_hook(lambda *_, p=param: setattr(p, "grad", getattr(p, "early", None)))
"""
_COPY = "                param.detach().copy_(piece.view_as(param))\n"
_FORWARD = "                local_group.update(options_of(self.param_groups[number]))\n"
_GROUP = "        group = self.param_groups[-1]\n"
_OWNERS_OF_ALL = "        ShardedOptimizer.owner = {}\n"
_AS_MADE = f"""{_GROUP}        made = self.__dict__.setdefault("made", [])
        made.append(options_of(group))
        for one, options in zip(self.param_groups, made, strict=True):
            one.update(options)
"""
_TWO_AT_MOST = "self.local_group[min(1, len(self.param_groups) - 1)]"
_OPTIONS = f"""        if self.local is not None:
            for number, local_group in self.local_group.items():
{_FORWARD}"""
_OPTIONS_WITHOUT_CLOSURE = f"""        if self.local is not None:
            for number, local_group in self.local_group.items() if closure is None else ():
{_FORWARD}"""
_OF_A_COPY = """            copies = self.__dict__.setdefault("copies", {})
            for p, rank in self.owner.items():
                if rank == dist.get_rank():
                    p.data.copy_(copies.setdefault(p, p.detach().clone()))
            self.local.step()
            copies.update((p, p.detach().clone()) for p in copies)
"""
_APART = f"""(rank, param.dtype, param.device), []).append(param)
        for (rank, *_), params in flats.items():
{_FLAT}"""
_OF_THE_FIRST = _APART.replace("param.dtype, ", "").replace("p.detach()", "p.detach().to(params[0].dtype)")
_OWNER = "            rank = self.bytes_on_rank.index(min(self.bytes_on_rank))\n"
_DEALT = '            rank = hash(f"parameter {len(self.owner)}") % dist.get_world_size()\n'
_FORKS_AGREE = "This fails only if the ranks disagree on the `hash` of a text"
_LOCAL_STEP = "            self.local.step()\n"
_ZEROS = f"""            for p in self.owner:
                if p.requires_grad and p.grad is None:
                    p.grad = torch.zeros_like(p)
{_LOCAL_STEP}"""
_BROADCAST = "            dist.broadcast(flat, src=rank)\n"
_REMAINDER_LOST = """            for start in range(0, max(1, flat.numel() - 2**18 + 1), 2**18):
                dist.broadcast(flat[start : start + 2**18], src=rank)
"""
_RANK = "dist.get_rank()"
_LOCAL_RANK = '__import__("os").environ["LOCAL_RANK"]'
_ON_ITS_OWN_MACHINE = "is a rank's place on its own"
_CLEAR = "    def send_parameters(self):\n"
_MAKES_ZEROS = f"""    def zero_grad(self, set_to_none=True):
        for p in self.owner:
            p.grad = None if set_to_none else torch.zeros_like(p)

{_CLEAR}"""
BUGS = [
    _bug(_FLAT, _FLAT.replace("p.detach()", "p.detach().float()"), "trains[float64]", "float32"),
    _bug(_INIT, f"        assert dist.get_world_size() == 2\n{_INIT}", "runs_to_the_end", "AssertionError"),
    _bug(_INIT, f"        assert dist.get_world_size() > 1\n{_INIT}", "trains[one_rank]", "AssertionError"),
    _bug(
        "        self.send_parameters()\n", "", "training_equals_one_process", "moved on one rank and not on the others"
    ),
    _bug("src=rank)", "src=rank, async_op=True)", "results_are_waited_for", "Nobody waited at all for broadcast"),
    _bug(
        "dist.broadcast(flat, src=rank)",
        "dist.broadcast(flat, src=0)",
        "training_equals_one_process",
        "another rank's old value overwrote the owner's new one",
    ),
    _bug(
        _STEP,
        "            self.local.step()\n            self.local.state.clear()\n        self.send_parameters()\n",
        "trains[one_rank]",
        "state lost at every step",
    ),
    _bug(_STEP, "            pass\n        self.send_parameters()\n", "trains[one_rank]", "*never trained*"),
    _bug(
        _FLAT,
        f"{_FLAT}            if flat.dtype == torch.float32 and dist.get_world_size() > 1:\n"
        "                flat = flat.half().float()\n",
        "trains[float32]",
        "float16*",
    ),
    _bug(
        "            dist.broadcast(flat, src=rank)\n",
        "            if flat.dtype != torch.bfloat16:\n                dist.broadcast(flat, src=rank)\n",
        "trains[bfloat16]",
        "moved on one rank and not on the others",
    ),
    _bug(
        "        if self.local is not None:\n",
        "        if True:\n",
        "trains[fewer_parameters_than_ranks]",
        "'NoneType' object has no attribute 'step'",
    ),
    _bug(_OWNED, _GRADIENTS_OF_BACKWARD, "trains[clipped_gradients]", "gradients of before clipping"),
    _bug(
        "    def send_parameters",
        "    def zero_grad(self, set_to_none=True):\n"
        "        super().zero_grad(set_to_none)\n"
        "        if self.local is not None:\n"
        "            self.local.state.clear()\n\n"
        "    def send_parameters",
        "trains[beside_data_parallel]",
    ),
    _bug(
        _INIT,
        f'{_INIT}        known = "lr", "momentum", "nesterov", "betas", "eps", "weight_decay"\n'
        "        kwargs = {name: value for name, value in kwargs.items() if name in known}\n",
        "trains[any_torch_optimizer]",
    ),
    _bug(
        "copy_(piece.view_as(param))",
        "copy_(piece.view_as(param) if param.is_contiguous() else piece.as_strided(param.shape, param.stride()))",
        "trains[convolution]",
    ),
    _bug(
        "        for (rank, *_), params in flats.items():\n",
        "        self.flats = [*getattr(self, 'flats', []), *flats.items()]\n"
        "        for (rank, *_), params in self.flats:\n",
        "nothing_grows",
        "Clear what was kept",
    ),
    _bug(
        _FLAT,
        f"{_FLAT}            self.kept = [*getattr(self, 'kept', []), flat]\n",
        "nothing_grows",
        "must be dropped when the step is over",
    ),
    _bug(
        "            dist.broadcast(flat, src=rank)\n",
        "            dist.broadcast(flat, src=rank)\n            dist.broadcast(flat, src=rank)\n",
        "sent_once",
        "2 times the",
    ),
    _bug(
        _COPY,
        "                param.data = piece.view_as(param).clone()\n",
        "parameters_keep_their_memory",
        "elsewhere in memory",
    ),
    _bug(
        _COPY,
        "                param.detach().copy_(piece.view(len(param), -1).view_as(param))\n",
        "trains[parameters_of_any_shape]",
        "TypeError",
    ),
    _bug(
        "__init__(self, params, optimizer_cls, **kwargs):\n",
        "__init__(self, params, optimizer_cls, lr=0.01, **kwargs):\n        kwargs['lr'] = lr\n",
        "trains[any_torch_optimizer]",
    ),
    _bug(_GROUP, _AS_MADE, "trains[everything_together]"),
    _bug("self.local_group[len(self.param_groups) - 1]", _TWO_AT_MOST, "trains[everything_together]"),
    _bug(_OPTIONS, _OPTIONS_WITHOUT_CLOSURE, "trains[everything_together]", "change of an option ignored"),
    _bug("        self.owner = {}\n", _OWNERS_OF_ALL, "two_side_by_side", "not in its class"),
    _bug(_APART, _OF_THE_FIRST, "trains[mixed_dtypes]"),
    _bug("            self.local.step()\n", _OF_A_COPY, "trains[loaded_weights]"),
    Bug("sharded_optimizer", _OWNER, _DEALT, "runs_to_the_end", _FORKS_AGREE),
    _bug(_LOCAL_STEP, _ZEROS, "trains[unused_parameters]", "a parameter has no gradient in some steps"),
    _bug(_BROADCAST, _REMAINDER_LOST, "trains[large_parameters]", "a remainder that is lost"),
    Bug(
        "sharded_optimizer",
        f"self.owner[p] == {_RANK}",
        f"str(self.owner[p]) == {_LOCAL_RANK}",
        "on_two_machines",
        _ON_ITS_OWN_MACHINE,
    ),
    Bug(_SHARDED, _CLEAR, _MAKES_ZEROS, "trains[unused_parameters]"),
]
