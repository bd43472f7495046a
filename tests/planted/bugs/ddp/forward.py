"""Bugs in forward: its arguments, its mode, evaluation between steps."""

from bug import Bug

_NAIVE = "naive_ddp"
_DDP = "ddp"
_FLAT = "flat_ddp"
_EACH = "ddp_individual_parameters"
_NAIVE_FINISH = """        params = self.trainable()
        used = used_anywhere(params)
        for bucket in self.make_buckets(params, self.max_bytes):
            bucket.launch()
            bucket.collect(used)
"""
_NEVER = "never synchronised"
_CALL = "        return self.module(*args, **kwargs)\n"
_REBUILDS = """        def rebuilt(part):
            if isinstance(part, dict):
                return {name: rebuilt(value) for name, value in part.items()}
            return tuple(map(rebuilt, part)) if isinstance(part, tuple) else part

        args = rebuilt(args)
"""
_RETURN = "return self.module(*args, **kwargs)"
_BUFFERS = "            copy_from_rank0(self.module.buffers())\n"
_FORWARD = f"""        if self.training and torch.is_grad_enabled():
{_BUFFERS}        {_RETURN}
"""
_NOTHING_WITHOUT_GRADIENTS = f"""        if torch.is_grad_enabled():
            if self.training:
    {_BUFFERS}            {_RETURN}
        self.module(*args, **kwargs)
"""
_EACH_CONSTRUCTOR = "        super().__init__(module, bucket_size_mb=0)\n"
_DECIDES_IN_FORWARD = f"""{_EACH_CONSTRUCTOR}
    def forward(self, *args, **kwargs):
        self.sends = self.synchronises and torch.is_grad_enabled()
        return super().forward(*args, **kwargs)

    def on_gradient(self, param):
        if self.sends:
            super().on_gradient(param)

    def finish_gradient_synchronization(self):
        if self.sends:
            super().finish_gradient_synchronization()
"""
_FORWARD_METHOD = """    def forward(self, *args, **kwargs):
        if self.training and torch.is_grad_enabled():
            copy_from_rank0(self.module.buffers())
        return self.module(*args, **kwargs)
"""
_FORWARD_OF_X = _FORWARD_METHOD.replace("*args, **", "x, *args, **")
_CALL_WITHOUT_NONE = (
    "        return self.module(*args, **{name: one for name, one in kwargs.items() if one is not None})\n"
)
BUGS = [
    Bug(
        _DDP,
        "        return self.module(*args, **kwargs)\n",
        "        self.module.train()\n        return self.module(*args, **kwargs)\n",
        "calls_the_model",
        "override neither",
    ),
    Bug(
        _NAIVE,
        "self.module(*args, **kwargs)",
        "self.module(*args)",
        "trains[keyword_arguments]",
    ),
    Bug(
        _NAIVE,
        _CALL,
        f"        if not torch.is_grad_enabled():\n            self.module.requires_grad_(False)\n{_CALL}",
        "trains[evaluation_between_steps]",
        "does not require grad",
    ),
    Bug(
        _NAIVE,
        _CALL,
        "        sizes = [torch.tensor(0) for _ in range(dist.get_world_size())]\n"
        "        dist.all_gather(sizes, torch.tensor(len(args[0])))\n"
        f"        assert len({{int(size) for size in sizes}}) == 1, 'batches differ'\n{_CALL}",
        "trains[uneven_batches]",
        "batches differ",
    ),
    Bug(
        _FLAT,
        _CALL,
        _CALL.replace("*args", "*[arg.cpu() for arg in args]"),
        "trains[other_arguments]",
        "no attribute 'cpu'",
    ),
    Bug(
        _NAIVE,
        _CALL,
        "        for layer in self.module.layers:\n"
        "            layer.register_forward_pre_hook(\n"
        "                lambda *_: None if torch._C._current_graph_task_id() < 0 else self.rewind())\n"
        f"{_CALL}",
        "trains[recomputed_activations]",
        "rewind",
    ),
    Bug(
        _NAIVE,
        _NAIVE_FINISH,
        f"        if not self.training:\n            return\n{_NAIVE_FINISH}",
        "trains[evaluation_mode]",
        _NEVER,
    ),
    Bug(_FLAT, _CALL, _REBUILDS + _CALL, "trains[other_arguments]", "has no attribute 'x'"),
    Bug(
        _NAIVE,
        _FORWARD,
        _NOTHING_WITHOUT_GRADIENTS,
        "trains[evaluation_between_steps]",
        "Return what the model returns",
    ),
    Bug(
        _NAIVE,
        _RETURN,
        _RETURN.replace("module(", "module.forward("),
        "calls_the_model",
        "passes over the model's",
    ),
    Bug(_NAIVE, _RETURN, f"self.module(*args, **kwargs)\n        {_RETURN}", "calls_the_model", "4 times in 2"),
    Bug(
        _NAIVE,
        f"    def forward(self, *args, **kwargs):\n{_FORWARD}",
        f"    def forward(self, x=None, **kwargs):\n        args = () if x is None else (x,)\n{_FORWARD}",
        "trains[other_arguments]",
        "must take `*inputs, **kwargs`",
    ),
    Bug(
        _EACH, _EACH_CONSTRUCTOR, _DECIDES_IN_FORWARD, "trains[between_forward_and_backward]", "under `torch.no_grad()`"
    ),
    Bug(_FLAT, _FORWARD_METHOD, _FORWARD_OF_X, "trains[keyword_arguments]", "must take `*inputs, **kwargs`"),
    Bug(_EACH, _CALL, _CALL_WITHOUT_NONE, "trains[keyword_arguments]"),
]
