"""Bugs planted in the `forward` of the bundled right wrappers, and in what it prepares for backward."""

from bug import Bug

_NAIVE, _EACH, _FLAT, _BUCKETED = "naive_ddp", "ddp_individual_parameters", "flat_ddp", "ddp_bucketed"
_CALL = "return self.module(*args, **kwargs)"
_BUFFERS = "            copy_from_rank0(self.module.buffers())\n"
_FORWARD = f"""        if self.training and torch.is_grad_enabled():
{_BUFFERS}        {_CALL}
"""
_NOTHING_WITHOUT_GRADIENTS = f"""        if torch.is_grad_enabled():
            if self.training:
    {_BUFFERS}            {_CALL}
        self.module(*args, **kwargs)
"""
_SUMMED_BUFFERS = "            for buffer in self.module.buffers():\n                dist.all_reduce(buffer)\n"
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
_BUCKET_PER_KIND = """                current[kind] = Bucket()
                buckets.append(current[kind])
"""
_NEVER_EMPTIED = """                filled = current[kind].nbytes if kind in current else 0
                current[kind] = Bucket()
                current[kind].nbytes = filled
                buckets.append(current[kind])
"""
_COPIED_BACK = "            param.grad.detach().copy_(piece.view_as(param))\n"
_WRITTEN_ONCE = f"""            if param in self.waiting_for and getattr(param, "written", None) is param.grad:
                continue
{_COPIED_BACK}            param.written = param.grad
"""
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
_COPIED = "        copy_from_rank0([*module.parameters(), *module.buffers()])\n"
_UNAWAITED_BUFFERS = """        copy_from_rank0(module.parameters())
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0, async_op=True)
"""

FORWARD_BUGS = [
    Bug(_NAIVE, _FORWARD, _NOTHING_WITHOUT_GRADIENTS, "evaluation_between_steps", "Return what the model returns"),
    Bug(_NAIVE, _CALL, _CALL.replace("module(", "module.forward("), "calls_the_model_once", "passes over the model's"),
    Bug(_NAIVE, _CALL, f"self.module(*args, **kwargs)\n        {_CALL}", "calls_the_model_once", "4 times in 2"),
    Bug(
        _NAIVE,
        f"    def forward(self, *args, **kwargs):\n{_FORWARD}",
        f"    def forward(self, x=None, **kwargs):\n        args = () if x is None else (x,)\n{_FORWARD}",
        "positional_arguments",
        "must take `*inputs, **kwargs`",
    ),
    Bug(_NAIVE, _FORWARD, _FORWARD.replace(_BUFFERS, _SUMMED_BUFFERS), "buffers_broadcast", "forward change them"),
    Bug(_EACH, _EACH_CONSTRUCTOR, _DECIDES_IN_FORWARD, "forward_without_gradients", "under `torch.no_grad()`"),
    Bug(_BUCKETED, _BUCKET_PER_KIND, _NEVER_EMPTIED, "bucket_size_respected", "start the next bucket from zero"),
    Bug(_FLAT, _ONE_AFTER_ANOTHER, _ALL_BUT_THE_LAST_UNAWAITED, "mixed_dtypes"),
    Bug(_NAIVE, _COPIED, _UNAWAITED_BUFFERS, "buffers_broadcast"),
    Bug(
        _BUCKETED,
        _COPIED_BACK,
        _WRITTEN_ONCE,
        "unused_while_accumulating",
    ),
]
