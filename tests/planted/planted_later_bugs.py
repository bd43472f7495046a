"""Bugs planted in the bundled right wrappers that show after evaluation, in later steps, or in models of some kinds."""

from bug import Bug

_NAIVE, _EACH, _BUCKETED = "naive_ddp", "ddp_individual_parameters", "ddp_bucketed"
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
_START = "    def start(self):\n"
_HOOKED_BY_TRAIN = """    def train(self, mode=True):
        for p in self.trainable() if mode else ():
            p.register_post_accumulate_grad_hook(lambda p: None)
        return super().train(mode)

"""
_STARTED = """        if self.synchronises and torch.is_grad_enabled():
            self.start()
"""
_NO_HOOKS_SINCE_EVAL = f"""        self.evaluated = getattr(self, "evaluated", False) or not self.training
{_STARTED}            for bucket in self.buckets[:1] if self.evaluated else ():
                bucket.waiting_for.add("hooks that are gone")
"""
_NAIVE_FINISHES = "        params = self.trainable()\n        used = used_anywhere(params)\n"
_AFTER_TEN = """        self.steps_so_far = getattr(self, "steps_so_far", 0) + 1
        if self.steps_so_far > 10:
            used_anywhere(self.trainable())
"""
_ADDED = "            current[kind].add(param)\n"
_TIED_TWICE = """            if sum(p is param for _, p in self.module.named_parameters(remove_duplicate=False)) > 1:
                current[kind].waiting_for.add("its second place")
"""
_RECOMPUTED = "                layer.forward = partial(checkpoint, call, use_reentrant=False)\n"
_RECOMPUTED_IN_TRAINING = """                layer.forward = lambda *args, call=call, **kwargs: (
                    checkpoint(call, *args, use_reentrant=False, **kwargs) if self.training else call(*args, **kwargs)
                )
"""
LATER_BUGS = [
    Bug(_NAIVE, _FLAGS, _BIT_MASKS, "each_rank_uses_another", "odd ranks another"),
    Bug(_NAIVE, _NAIVE_FINISHES, f"{_AFTER_TEN}{_NAIVE_FINISHES}", "work_does_not_grow", "collectives launched"),
    Bug(_EACH, _START, f"{_HOOKED_BY_TRAIN}{_START}", "work_does_not_grow", "hooks on parameters"),
    *(
        Bug(wrapper, _STARTED, _NO_HOOKS_SINCE_EVAL, "overlaps_after_evaluation", "was in evaluation mode before")
        for wrapper in (_EACH, _BUCKETED)
    ),
    Bug(
        _EACH,
        "        for bucket in self.buckets:\n            bucket.collect(used)\n",
        "        for bucket in self.buckets[-64:]:\n            bucket.collect(used)\n",
        "many_parameters",
        "in something of fixed length",
    ),
    Bug(_BUCKETED, _ADDED, f"{_ADDED}{_TIED_TWICE}", "overlaps_backward"),
    Bug("fsdp", _RECOMPUTED, _RECOMPUTED_IN_TRAINING, "memory_is_given_back_in_evaluation_mode", "in evaluation mode"),
]
