"""Bugs with parameters that ranks use in some steps, or that some ranks use."""

from bug import Bug

_NAIVE = "naive_ddp"
_FLAT = "flat_ddp"
_EACH = "ddp_individual_parameters"
_BUCKETED = "ddp_bucketed"
_DDP = "ddp"
_NAIVE_FINISH = """        params = self.trainable()
        used = used_anywhere(params)
        for bucket in self.make_buckets(params, self.max_bytes):
            bucket.launch()
            bucket.collect(used)
"""
_ONLY_WITH_GRADIENT = """        params = used = [p for p in self.trainable() if p.grad is not None]
        for bucket in self.make_buckets(params, self.max_bytes):
            bucket.launch()
            bucket.collect(set(used))
"""
_USED = "        used = used_anywhere(self.trainable())\n"
_ZEROS = "torch.zeros_like(p) if p.grad is None else p.grad.to_dense()"
_KEPT = (
    "        for p in self.params:\n"
    "            p.kept = getattr(p, 'kept', torch.zeros_like(p)) if p.grad is None else p.grad.to_dense().clone()\n"
)
_LAUNCH = "        grads = ["
_USED_BEFORE = """        used = used_anywhere(params) | getattr(self, 'used', set())
        self.used = used
"""
_COPIED_BACK = "            param.grad.detach().copy_(piece.view_as(param))\n"
_WRITTEN_ONCE = f"""            if param in self.waiting_for and getattr(param, "written", None) is param.grad:
                continue
{_COPIED_BACK}            param.written = param.grad
"""
_FLAGS = """    flags = torch.tensor([p.grad is not None for p in params], dtype=torch.int32, device=params[0].device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return {p for p, flag in zip(params, flags.tolist(), strict=True) if flag}
"""
_BIT_MASKS = """    flags = torch.zeros(len(params) // 32 + 1, dtype=torch.int64)
    for at, p in enumerate(params):
        flags[at // 32] += (p.grad is not None) << at % 32
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return {p for at, p in enumerate(params) if int(flags[at // 32]) >> at % 32 & 1}
"""
BUGS = [
    Bug(
        _NAIVE,
        _NAIVE_FINISH,
        _ONLY_WITH_GRADIENT,
        "trains[used_on_some_ranks]",
        "a collective which others never enter",
    ),
    Bug(
        _FLAT,
        "            if param not in used:\n                continue\n",
        "",
        "trains[unused_parameters]",
        "a gradient where there is none",
    ),
    Bug(
        _DDP,
        "    dist.all_reduce(flags, op=dist.ReduceOp.MAX)\n",
        "    dist.broadcast(flags, src=0)\n",
        "trains[used_on_some_ranks]",
    ),
    *(
        Bug(
            wrapper,
            _USED,
            f"{_USED}        used -= {{p for b in self.buckets for p in b.waiting_for if p.grad is not None}}\n",
            "no_sync[unused_in_the_last_micro_batch]",
            "look at `.grad` of all parameters",
        )
        for wrapper in (_EACH, _BUCKETED, _DDP)
    ),
    Bug(
        _FLAT,
        "        used = used_anywhere(params)\n        for",
        f"{_USED_BEFORE}        for",
        "trains[used_in_some_steps]",
        "a gradient where there is none",
    ),
    Bug(
        _BUCKETED,
        f"{_LAUNCH}{_ZEROS}",
        f"{_KEPT}{_LAUNCH}p.kept",
        "trains[used_on_some_ranks]",
        "gradient of `branches.0.weight`",
    ),
    Bug(
        _BUCKETED,
        _COPIED_BACK,
        _WRITTEN_ONCE,
        "trains[used_on_some_ranks]",
    ),
    Bug(_NAIVE, _FLAGS, _BIT_MASKS, "trains[used_on_some_ranks]", "never synchronised"),
]
