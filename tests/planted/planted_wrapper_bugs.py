"""Bugs planted in the bundled right wrappers in what they compute, each with the check that catches it first.

`old` stands once in one of the files of `examples/correct`.
"""

from bug import Bug

_AVERAGE = "/ dist.get_world_size()\n"
SPEAK = "        self.handle = dist.all_reduce(self.flat, async_op=True)\n"
LAUNCH_IN_TURN = """        while self.sent < len(self.buckets) and not self.buckets[self.sent].waiting_for:
            self.send_next()

    def send_next"""
_LAUNCH_AS_READY = """        bucket = self.bucket_of[param]
        if not bucket.waiting_for:
            self.buckets.remove(bucket)
            self.buckets.insert(self.sent, bucket)
            self.send_next()

    def send_next"""
_DIVIDE_FIRST = f""") for grad in grads]) {_AVERAGE}{SPEAK}
    def collect(self, used):
        self.handle.wait()
"""
_DIVIDE_LAST = f""") for grad in grads])
{SPEAK}
    def collect(self, used):
        self.handle.wait()
        self.flat /= dist.get_world_size()
"""
NAIVE_FINISH = """        params = self.trainable()
        used = used_anywhere(params)
        for bucket in self.make_buckets(params, self.max_bytes):
            bucket.launch()
            bucket.collect(used)
"""
_TIED_TWICE = """        named = self.module.named_parameters(remove_duplicate=False)
        for param in [param for _, param in named if param.grad is not None]:
            dist.all_reduce(param.grad)
        for param in [param for param in self.trainable() if param.grad is not None]:
            param.grad /= dist.get_world_size()
"""
_ONCE_PER_TENSOR = """        params = [p for p in self.trainable() if p.grad is not None]
        params = [p for p in params if not hasattr(p.grad, "averaged")]
        used = set(params)
        for bucket in self.make_buckets(params, self.max_bytes):
            bucket.launch()
            bucket.collect(used)
        for param in params:
            param.grad.averaged = True
"""
_ROUNDED_AT_LAST = (
    NAIVE_FINISH
    + """        self.calls = getattr(self, "calls", 0) + 1
        for param in params if self.calls == 3 and dist.get_world_size() > 1 else []:
            param.data = param.data.half().to(param.dtype)
"""
)
_ONLY_WITH_GRADIENT = """        params = used = [p for p in self.trainable() if p.grad is not None]
        for bucket in self.make_buckets(params, self.max_bytes):
            bucket.launch()
            bucket.collect(set(used))
"""
_NAIVE, _FLAT, _EACH, _BUCKETED, _DDP = (
    "naive_ddp",
    "flat_ddp",
    "ddp_individual_parameters",
    "ddp_bucketed",
    "ddp",
)
_SUMMED, _TWICE, _NEVER = "summed, not averaged", "divided twice", "never synchronised"

_EVERY_WRAPPER = [
    Bug(wrapper, old, new, check, words)
    for wrapper in (_NAIVE, _FLAT, _EACH, _BUCKETED, _DDP)
    for old, new, check, words in (
        (_AVERAGE, "\n", "gradients_averaged", _SUMMED),
        (_AVERAGE, "/ dist.get_world_size() ** 2\n", "gradients_averaged", _TWICE),
        (
            "copy_from_rank0([*module.parameters(), *module.buffers()])",
            "copy_from_rank0(module.buffers())",
            "initial_broadcast",
            "Initial values are not broadcast",
        ),
    )
]

WRAPPER_BUGS = [
    Bug(
        _EACH,
        "        params = self.trainable()\n        self.buckets,",
        "        assert not self.buckets or self.sent\n        params = self.trainable()\n        self.buckets,",
        "several_forwards_one_backward",
        "AssertionError",
    ),
    Bug(
        _NAIVE,
        "        copy_from_rank0([*module.parameters(), *module.buffers()])\n",
        "        for p in module.parameters():\n            p.grad = torch.zeros_like(p) if p.requires_grad else None\n"
        "        copy_from_rank0([*module.parameters(), *module.buffers()])\n",
        "wrapping_makes_no_gradients",
        "had a gradient already",
    ),
    Bug(
        _DDP,
        "        return self.module(*args, **kwargs)\n",
        "        self.module.train()\n        return self.module(*args, **kwargs)\n",
        "mode_reaches_the_model",
        "override neither",
    ),
    Bug(
        _EACH,
        "                param.register_post_accumulate_grad_hook(self.on_gradient)\n",
        "                BucketedDDP.newest = self\n"
        "                param.register_post_accumulate_grad_hook(lambda p: BucketedDDP.newest.on_gradient(p))\n",
        "two_models_side_by_side",
        "KeyError",
    ),
    *_EVERY_WRAPPER,
    Bug(_NAIVE, NAIVE_FINISH, "        pass\n", "gradients_averaged", _NEVER),
    Bug(_NAIVE, _AVERAGE, "/ 2\n", "one_rank", "divided by a fixed 2"),
    Bug(_EACH, _AVERAGE, "* 2 / dist.get_world_size()\n", "one_rank", "counted twice"),
    Bug(
        _NAIVE,
        "[*module.parameters(), *module.buffers()]",
        "[*self.trainable(), *module.buffers()]",
        "frozen_parameters_stay",
        "exactly the frozen parameters",
    ),
    Bug(_NAIVE, NAIVE_FINISH, _ROUNDED_AT_LAST, "training_equals_one_process"),
    Bug(
        _NAIVE,
        "dist.broadcast(value",
        "0 and dist.broadcast(value",
        "initial_broadcast",
        "Initial values are not broadcast",
    ),
    Bug(
        _NAIVE,
        "        self.module = module\n",
        "        self.module = module.float()\n",
        "runs_to_the_end",
        "RuntimeError",
    ),
    Bug(
        _NAIVE,
        "        self.module = module\n",
        "        assert dist.get_world_size() == 2\n        self.module = module\n",
        "runs_to_the_end",
        "AssertionError",
    ),
    Bug(
        _NAIVE,
        "        self.module = module\n",
        "        assert dist.get_world_size() > 1\n        self.module = module\n",
        "one_rank",
        "AssertionError",
    ),
    Bug(
        _NAIVE,
        "        self.handle.wait()\n",
        "        self.handle.wait()\n        self.flat = self.flat * (1 + dist.get_rank() * 2**-51)\n",
        "ranks_stay_identical",
    ),
    Bug(
        _FLAT,
        SPEAK,
        "        if self.flat.dtype == torch.float32 and dist.get_world_size() > 1:\n"
        "            self.flat = self.flat.bfloat16().float()\n" + SPEAK,
        "trains_in_float32",
    ),
    Bug(
        _EACH,
        SPEAK,
        "        sent = self.flat.float() if self.flat.dtype == torch.bfloat16 else self.flat\n"
        "        self.handle = dist.all_reduce(sent, async_op=True)\n",
        "trains_in_bfloat16",
    ),
    Bug(
        _FLAT,
        "        for bucket in self.make_buckets(params, self.max_bytes):\n",
        "        for bucket in self.make_buckets(params, self.max_bytes)[:1]:\n",
        "mixed_dtypes",
        _NEVER,
    ),
    Bug(
        _FLAT,
        "        for bucket in self.make_buckets(params, self.max_bytes):\n"
        "            bucket.launch()\n            bucket.collect(used)\n",
        "        flat = torch.cat([p.grad.reshape(-1).to(params[0].dtype) for p in params]) / dist.get_world_size()\n"
        "        dist.all_reduce(flat)\n"
        "        for p, part in zip(params, flat.split([p.numel() for p in params])):\n"
        "            p.grad = part.view_as(p).to(p.dtype)\n",
        "mixed_dtypes",
        "rounded to float32 on its way",
    ),
    Bug(
        _EACH,
        "if p.requires_grad]",
        "]",
        "frozen_parameters_stay",
        "a hook on a tensor",
    ),
    Bug(_NAIVE, NAIVE_FINISH, _TIED_TWICE, "tied_parameters", _SUMMED),
    Bug(
        _NAIVE,
        "param.grad.detach().copy_(piece.view_as(param))",
        "param.grad.detach()[:] = piece.view_as(param)",
        "scalar_parameter",
        "IndexError",
    ),
    Bug(_FLAT, "grad.detach().reshape(-1) for", "grad.detach().view(-1) for", "non_contiguous_parameter", "view"),
    Bug(
        _BUCKETED,
        "param.grad.detach().copy_(piece.view_as(param))",
        "param.grad.detach().copy_(piece.as_strided(param.shape, param.stride()))",
        "non_contiguous_parameter",
        "in memory order",
    ),
    Bug(_NAIVE, NAIVE_FINISH, _ONCE_PER_TENSOR, "zero_grad_in_place", _NEVER),
    Bug(
        _NAIVE,
        "self.module(*args, **kwargs)",
        "self.module(*args)",
        "forward_keywords",
    ),
    Bug(
        _DDP,
        "[*module.parameters(), *module.buffers()]",
        "module.parameters()",
        "buffers_broadcast",
        "`module.buffers()`",
    ),
    Bug(
        _FLAT,
        "        tensor.data.copy_(value)\n",
        "        if tensor.is_floating_point():\n"
        "            tensor.data.copy_(value)\n"
        "        else:\n"
        "            tensor.data = value.double()\n",
        "buffers_broadcast",
        "in its own dtype",
    ),
    Bug(_NAIVE, NAIVE_FINISH, _ONLY_WITH_GRADIENT, "unused_on_some_ranks", "a collective which others never enter"),
    Bug(
        _FLAT,
        "            if param not in used:\n                continue\n",
        "",
        "unused_everywhere",
        "a gradient where there is none",
    ),
    Bug(
        _BUCKETED,
        "        params = self.trainable()\n        self.buckets",
        "        params = self.params = getattr(self, 'params', []) or self.trainable()\n        self.buckets",
        "unfreezing_after_wrapping",
        _NEVER,
    ),
    Bug(_EACH, LAUNCH_IN_TURN, _LAUNCH_AS_READY, "gradient_order_differs", "gradients were mixed up"),
    Bug(
        _FLAT,
        "            if param not in used:\n",
        "            if param not in used or (param.grad is not None and param.grad.is_sparse):\n",
        "sparse_gradients",
        _NEVER,
    ),
    Bug(_NAIVE, "p.grad.to_dense() for", "p.grad.to_dense().real for", "complex_parameter", "real part alone"),
    Bug(_EACH, _DIVIDE_FIRST, _DIVIDE_LAST, "range_of_float16", "Divide by the number of ranks before adding up"),
]
