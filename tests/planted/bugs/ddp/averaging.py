"""Bugs in how gradients are averaged: the divisor, the dtype, a forgotten all-reduce."""

from bug import Bug

_NAIVE = "naive_ddp"
_FLAT = "flat_ddp"
_EACH = "ddp_individual_parameters"
_BUCKETED = "ddp_bucketed"
_DDP = "ddp"
_AVERAGE = "/ dist.get_world_size()\n"
_SPEAK = "        self.handle = dist.all_reduce(self.flat, async_op=True)\n"
_DIVIDE_FIRST = f""") for grad in grads]) {_AVERAGE}{_SPEAK}
    def collect(self, used):
        self.handle.wait()
"""
_DIVIDE_LAST = f""") for grad in grads])
{_SPEAK}
    def collect(self, used):
        self.handle.wait()
        self.flat /= dist.get_world_size()
"""
_NAIVE_FINISH = """        params = self.trainable()
        used = used_anywhere(params)
        for bucket in self.make_buckets(params, self.max_bytes):
            bucket.launch()
            bucket.collect(used)
"""
_ROUNDED_AT_LAST = (
    _NAIVE_FINISH
    + """        self.calls = getattr(self, "calls", 0) + 1
        for param in params if self.calls == 3 and dist.get_world_size() > 1 else []:
            param.data = param.data.half().to(param.dtype)
"""
)
_ASKED_THREE_TIMES = """        for _ in range(3):
            if self.handle.is_completed():
                break
            __import__("time").sleep(0.05)
"""
_SUMMED = "summed, not averaged"
_TWICE = "divided twice"
_NEVER = "never synchronised"
_WRONG_DIVISORS = [
    Bug(wrapper, _AVERAGE, new, "gradients_averaged", words)
    for wrapper in (_NAIVE, _FLAT, _EACH, _BUCKETED, _DDP)
    for new, words in (("\n", _SUMMED), ("/ dist.get_world_size() ** 2\n", _TWICE))
]
_TRAINABLE = "        return [p for p in self.module.parameters() if p.requires_grad]\n"
_IN_A_SET = """        named = dict(self.module.named_parameters())
        return [named[name] for name in set(named) if named[name].requires_grad]
"""
_LAUNCH = "    def launch(self):\n"
_SORTED = f'{_LAUNCH}        self.params.sort(key=lambda p: hash(f"{{p.shape}}"))\n'
_FORKS_AGREE = "This fails only if the ranks disagree on the `hash` of a text"
_ONE_AFTER_ANOTHER = """        for bucket in self.make_buckets(params, self.max_bytes):
            bucket.launch()
            bucket.collect(used)
"""
_ALL_BUT_THE_LAST_UNAWAITED = """        buckets = self.make_buckets(params, self.max_bytes)
        for bucket in buckets:
            bucket.launch()
        for bucket in buckets[:-1]:
            bucket.handle.wait = lambda: None
        for bucket in buckets[::-1]:
            bucket.collect(used)
"""
_HOOK = "param.register_post_accumulate_grad_hook(self.on_gradient)"
_WAITED_AT_THE_END = """param.register_hook(
                    lambda grad: torch.autograd.Variable._execution_engine.queue_callback(
                        dist.all_reduce(grad, async_op=True).wait
                    )
                )"""
_CLIPPED = "        torch.nn.utils.clip_grad_norm_(self.trainable(), 0.1)\n"
BUGS = [
    *_WRONG_DIVISORS,
    Bug(_NAIVE, _NAIVE_FINISH, "        pass\n", "gradients_averaged", _NEVER),
    Bug(_NAIVE, _AVERAGE, "/ 2\n", "trains[one_rank]", "divided by a fixed 2"),
    Bug(_EACH, _AVERAGE, "* 2 / dist.get_world_size()\n", "trains[one_rank]", "counted twice"),
    Bug(_NAIVE, _NAIVE_FINISH, _ROUNDED_AT_LAST, "training_equals_one_process"),
    Bug(
        _NAIVE,
        "        self.module = module\n",
        "        self.module = module.float()\n",
        "trains[float64]",
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
        "trains[one_rank]",
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
        _SPEAK,
        "        if self.flat.dtype == torch.float32 and dist.get_world_size() > 1:\n"
        "            self.flat = self.flat.bfloat16().float()\n" + _SPEAK,
        "trains[float32]",
    ),
    Bug(
        _EACH,
        _SPEAK,
        "        sent = self.flat.float() if self.flat.dtype == torch.bfloat16 else self.flat\n"
        "        self.handle = dist.all_reduce(sent, async_op=True)\n",
        "trains[bfloat16]",
    ),
    Bug(
        _FLAT,
        "        for bucket in self.make_buckets(params, self.max_bytes):\n",
        "        for bucket in self.make_buckets(params, self.max_bytes)[:1]:\n",
        "trains[mixed_dtypes]",
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
        "trains[mixed_dtypes]",
        "rounded to float32 on its way",
    ),
    Bug(
        _NAIVE,
        "p.grad.to_dense() for",
        "p.grad.to_dense().real for",
        "trains[parameters_of_any_shape]",
        "real part alone",
    ),
    Bug(
        _NAIVE,
        "param.grad.detach().copy_(piece.view_as(param))",
        "param.grad.detach().real.copy_(piece.view_as(param).real)",
        "trains[parameters_of_any_shape]",
        "real part alone",
    ),
    Bug(_EACH, _DIVIDE_FIRST, _DIVIDE_LAST, "range_of_float16", "Divide by the number of ranks before adding up"),
    Bug(
        _BUCKETED,
        "        for bucket in self.buckets:\n            bucket.collect(used)\n",
        "        for bucket in self.buckets[:-1]:\n            bucket.collect(used)\n",
        "gradients_averaged",
        "bucket",
    ),
    Bug(
        _NAIVE,
        "p.grad.to_dense() for",
        "torch.nan_to_num(p.grad.to_dense(), 0.0, 0.0, 0.0) for",
        "overflow_reaches_every_rank",
        "are finite all the same",
    ),
    Bug("flat_ddp", _TRAINABLE, _IN_A_SET, "gradients_averaged", _FORKS_AGREE),
    Bug("ddp_bucketed", _LAUNCH, _SORTED, "gradients_averaged", _FORKS_AGREE),
    Bug(_FLAT, _ONE_AFTER_ANOTHER, _ALL_BUT_THE_LAST_UNAWAITED, "trains[mixed_dtypes]"),
    Bug(
        _EACH,
        _HOOK,
        "param.register_hook(lambda grad, p=param: self.on_gradient(p))",
        "gradients_averaged",
        "a hook before the gradient is stored",
    ),
    Bug(_EACH, _HOOK, _WAITED_AT_THE_END, "results_are_waited_for", "a hook before the gradient is stored"),
    Bug(
        _NAIVE,
        _NAIVE_FINISH,
        "        for param in self.trainable():\n            dist.all_reduce(param.data)\n",
        "gradients_averaged",
        "parameters reduced, not their gradients",
    ),
    Bug(_NAIVE, _NAIVE_FINISH, _CLIPPED + _NAIVE_FINISH, "trains[one_rank]", "clipped by the wrapper"),
    Bug(_NAIVE, _NAIVE_FINISH, _CLIPPED + _NAIVE_FINISH, "gradients_averaged", "clipped by the wrapper"),
    Bug(_NAIVE, _NAIVE_FINISH, _NAIVE_FINISH + _CLIPPED, "gradients_averaged", "clipped by the wrapper"),
    Bug(_NAIVE, _NAIVE_FINISH, "        pass  # no gradient is sent\n", "gradients_averaged", "No gradient was sent"),
    Bug(
        _NAIVE,
        "        self.handle.wait()\n",
        '        if not self.handle.is_completed():\n            __import__("time").sleep(0.1)\n',
        "any_schedule",
        "It is right where ranks run in turn",
    ),
    Bug(
        _NAIVE,
        "        self.handle.wait()\n",
        _ASKED_THREE_TIMES,
        "any_schedule",
        "It is right where ranks run in turn",
    ),
    Bug(
        "flat_ddp",
        "/ dist.get_world_size()",
        "/ min(dist.get_world_size(), 32)",
        "large_worlds",
        "It is right with 3 ranks",
    ),
]
