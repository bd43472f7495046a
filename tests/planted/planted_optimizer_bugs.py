"""Bugs planted in the bundled right sharded optimizer, each with the check that catches it first."""

from bug import Bug
from planted_group_bugs import GROUP_BUGS

_FORWARD = "                local_group.update(options_of(self.param_groups[number]))\n"
_CLOSURE = """            with torch.enable_grad():
                loss = closure()
"""
_STEP = "            self.local.step()\n        self.send_parameters()\n"
_MINE = "        if mine:\n"
_INIT = "        self.optimizer_cls = optimizer_cls\n"
_FLAT = "            flat = torch.cat([p.detach().reshape(-1) for p in params])\n"
_OWNED = "            self.owner[param] = rank\n"
_GRADIENTS_OF_BACKWARD = f"""{_OWNED}            if param.requires_grad:
                param.register_post_accumulate_grad_hook(lambda p: setattr(p, "early", p.grad.clone()))
            self.register_step_pre_hook(lambda *_, p=param: setattr(p, "grad", getattr(p, "early", None)))
"""
_COPY = "                param.detach().copy_(piece.view_as(param))\n"


def _bug(old, new, check, words=""):
    return Bug("sharded_optimizer", old, new, check, words)


OPTIMIZER_BUGS = [
    _bug(_INIT, f"        assert dist.get_world_size() == 2\n{_INIT}", "runs_to_the_end", "AssertionError"),
    _bug(_INIT, f"        assert dist.get_world_size() > 1\n{_INIT}", "one_rank_optimizer", "AssertionError"),
    _bug(
        "        self.send_parameters()\n", "", "equals_unsharded_optimizer", "moved on one rank and not on the others"
    ),
    _bug("src=rank)", "src=rank, async_op=True)", "results_are_waited_for", "Nobody waited at all for broadcast"),
    _bug("dist.broadcast(flat, src=rank)", "dist.broadcast(flat, src=0)", "equals_unsharded_optimizer", "overwritten"),
    _bug(
        _STEP,
        "            self.local.step()\n",
        "equals_unsharded_optimizer",
        "moved on one rank and not on the others",
    ),
    _bug(
        _STEP,
        "            self.local.step()\n            self.local.state.clear()\n        self.send_parameters()\n",
        "one_rank_optimizer",
        "state lost at every step",
    ),
    _bug(_STEP, "            pass\n        self.send_parameters()\n", "one_rank_optimizer", "*never trained*"),
    _bug(
        _FLAT,
        f"{_FLAT}            if flat.dtype == torch.float32 and dist.get_world_size() > 1:\n"
        "                flat = flat.half().float()\n",
        "trains_in_float32",
        "float16*",
    ),
    _bug(
        "            dist.broadcast(flat, src=rank)\n",
        "            if flat.dtype != torch.bfloat16:\n                dist.broadcast(flat, src=rank)\n",
        "trains_in_bfloat16",
        "moved on one rank and not on the others",
    ),
    _bug(
        _FORWARD,
        "                local_group.update(options_of(self.param_groups[0]))\n",
        "param_groups_keep_options",
        "first group's options everywhere",
    ),
    _bug(
        "kwargs).defaults)\n",
        "kwargs).defaults)\n        self.add_local_group = lambda group: None\n",
        "add_param_group_before_training",
        "added group never trained",
    ),
    _bug(
        _MINE,
        "        if mine and not (self.local is not None and self.local.state):\n",
        "add_param_group_during_training",
        "added group never trained",
    ),
    _bug(
        "            self.local.add_param_group(group)\n",
        "            self.local = self.optimizer_cls([*self.local.param_groups, group], **self.kwargs)\n",
        "add_param_group_during_training",
        "state lost",
    ),
    _bug(_FORWARD, "                pass\n", "lr_through_param_groups", "change of an option ignored"),
    _bug(
        _FORWARD,
        '                local_group["lr"] = self.param_groups[number]["lr"]\n',
        "options_through_param_groups",
        "only changes of lr take effect",
    ),
    _bug(
        _FORWARD,
        "                for key, value in options_of(self.param_groups[number]).items():\n"
        "                    assert key in local_group\n"
        "                    local_group[key] = value\n",
        "lr_through_scheduler",
        "AssertionError",
    ),
    _bug(_CLOSURE, "            pass\n", "closure", "Call the closure once"),
    _bug("with torch.enable_grad():", "with torch.no_grad():", "closure", "`torch.enable_grad()`"),
    _bug(_CLOSURE, f"{_CLOSURE}                closure()\n", "closure", "Call the closure once"),
    _bug("        return loss\n", "        return None\n", "closure", "Call the closure once"),
    _bug(
        "        return loss\n",
        "        return None if loss is None else torch.stack([loss] * 2)\n",
        "closure",
        "nothing that is one number",
    ),
    _bug(
        "    return ShardedOptimizer(params, optimizer_cls, **kwargs)\n",
        "    class Plain:\n"
        "        def __init__(self):\n"
        "            self.inner = ShardedOptimizer(params, optimizer_cls, **kwargs)\n"
        "            self.step, self.zero_grad = self.inner.step, self.inner.zero_grad\n"
        "            self.add_param_group = self.inner.add_param_group\n\n"
        "    return Plain()\n",
        "lr_through_param_groups",
        "derive the sharded optimizer from it",
    ),
    _bug(
        "    def send_parameters",
        "    def zero_grad(self, set_to_none=True):\n"
        "        if self.local is not None:\n"
        "            self.local.zero_grad(set_to_none)\n\n"
        "    def send_parameters",
        "zero_grad_clears_all",
        "Clear the parameters of the outer",
    ),
    _bug("if self.owner[p] == dist.get_rank()]", "]", "state_is_sharded", "only the parameters that the rank owns"),
    _bug(
        "if self.owner[p] == dist.get_rank()]",
        "if self.owner[p] == dist.get_rank() or p is max(self.owner, key=torch.numel)]",
        "state_is_sharded",
        "only the parameters that the rank owns",
    ),
    _bug("self.bytes_on_rank.index(min(self.bytes_on_rank))", "0", "state_is_balanced", "the fewest bytes so far"),
    _bug(
        """param in sorted(group["params"], key=lambda p: -p.numel() * p.element_size()):
            rank = self.bytes_on_rank.index(min(self.bytes_on_rank))""",
        """number, param in enumerate(group["params"]):
            rank = number % dist.get_world_size()""",
        "state_is_balanced",
        "the fewest bytes so far",
    ),
    _bug(
        "        if self.local is not None:\n",
        "        if True:\n",
        "more_ranks_than_parameters",
        "'NoneType' object has no attribute 'step'",
    ),
    _bug(
        "            self.local.step()\n",
        "            assert all(p.grad is not None for p in self.owner)\n            self.local.step()\n",
        "frozen_parameters_in_groups",
        "AssertionError",
    ),
    _bug(_OWNED, _GRADIENTS_OF_BACKWARD, "clipped_gradients", "gradients of before clipping"),
    _bug(
        "    def send_parameters",
        "    def zero_grad(self, set_to_none=True):\n"
        "        super().zero_grad(set_to_none)\n"
        "        if self.local is not None:\n"
        "            self.local.state.clear()\n\n"
        "    def send_parameters",
        "beside_data_parallel",
    ),
    _bug(
        _INIT,
        f'{_INIT}        known = "lr", "momentum", "nesterov", "betas", "eps", "weight_decay"\n'
        "        kwargs = {name: value for name, value in kwargs.items() if name in known}\n",
        "any_torch_optimizer",
    ),
    _bug(
        "copy_(piece.view_as(param))",
        "copy_(piece.view_as(param) if param.is_contiguous() else piece.as_strided(param.shape, param.stride()))",
        "convolution",
    ),
    _bug(
        'for p in group["params"] if self.owner[p] == dist.get_rank()]',
        'for p in group["params"] if self.owner[p] == dist.get_rank() and p.requires_grad]',
        "unfreezing_in_groups",
        "unfrozen parameter never trained",
    ),
    _bug(
        "        for (rank, *_), params in flats.items():\n",
        "        self.flats = [*getattr(self, 'flats', []), *flats.items()]\n"
        "        for (rank, *_), params in self.flats:\n",
        "work_does_not_grow",
        "Clear what was kept",
    ),
    _bug(
        _FLAT,
        f"{_FLAT}            self.kept = [*getattr(self, 'kept', []), flat]\n",
        "memory_does_not_grow",
        "must be dropped when the step is over",
    ),
    _bug(
        "            dist.broadcast(flat, src=rank)\n",
        "            dist.broadcast(flat, src=rank)\n            dist.broadcast(flat, src=rank)\n",
        "parameters_travel_once",
        "2 times the",
    ),
    _bug(
        "    def send_parameters",
        "    def zero_grad(self, set_to_none=True):\n        super().zero_grad()\n\n    def send_parameters",
        "zero_grad_keeps_tensors",
        "Pass `set_to_none` on",
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
        "parameters_of_any_shape",
        "TypeError",
    ),
    _bug(
        'optimizer_cls([{"params": []}], **kwargs).defaults)',
        '{"lr": optimizer_cls([{"params": []}], **kwargs).defaults["lr"]})',
        "options_through_scheduler",
        "the defaults of the inner",
    ),
    _bug(
        "    def send_parameters",
        "    def zero_grad(self, set_to_none=True):\n"
        "        for p in self.param_groups[0]['params']:\n"
        "            p.grad = None\n\n"
        "    def send_parameters",
        "zero_grad_clears_added_groups",
        "Clear the parameters of the outer",
    ),
    _bug(
        _CLOSURE,
        "            loss = None if self.local is None else closure()\n",
        "closure_on_ranks_without_parameters",
        "Call the closure once",
    ),
    _bug(
        "        if mine:\n",
        "        if mine and (self.local is not None or len(self.param_groups) == 1):\n",
        "groups_smaller_than_the_world",
        "did not move on any rank",
    ),
    _bug(
        "kwargs).defaults)\n",
        "kwargs).defaults)\n        self.defaults = options_of(self.param_groups[0])\n",
        "added_groups_take_the_defaults",
        "first group's options everywhere",
    ),
    _bug(
        "__init__(self, params, optimizer_cls, **kwargs):\n",
        "__init__(self, params, optimizer_cls, lr=0.01, **kwargs):\n        kwargs['lr'] = lr\n",
        "any_torch_optimizer",
    ),
    *GROUP_BUGS,
]
