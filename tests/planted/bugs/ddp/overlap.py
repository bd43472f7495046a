"""Bugs in when collectives are launched: too late to overlap with backward, or in an order that ranks disagree on."""

from bug import Bug

_EACH = "ddp_individual_parameters"
_BUCKETED = "ddp_bucketed"
_DDP = "ddp"
_SPEAK = "        self.handle = dist.all_reduce(self.flat, async_op=True)\n"
_LAUNCH_IN_TURN = """        while self.sent < len(self.buckets) and not self.buckets[self.sent].waiting_for:
            self.send_next()

    def send_next"""
_LAUNCH_AS_READY = """        bucket = self.bucket_of[param]
        if not bucket.waiting_for:
            self.buckets.remove(bucket)
            self.buckets.insert(self.sent, bucket)
            self.send_next()

    def send_next"""
_WAITS_AT_ONCE = [
    Bug(wrapper, _SPEAK, f"{_SPEAK}        self.handle.wait()\n", check, "backward stands still")
    for wrapper, check in (
        (_EACH, "overlaps_backward"),
        (_BUCKETED, "overlaps_backward"),
        (_DDP, "overlaps_backward"),
    )
]
_FILLED = "        self.bucket_of = {p: bucket"
_WAITING_FOR_FROZEN = [
    Bug(
        wrapper,
        _FILLED,
        "        for bucket in self.buckets[:1]:\n"
        f"            bucket.waiting_for.update(p for p in self.module.parameters() if not p.requires_grad)\n{_FILLED}",
        check,
        "no collective was launched while backward",
    )
    for wrapper, check in (
        (_EACH, "overlaps_backward"),
        (_BUCKETED, "overlaps_backward"),
        (_DDP, "overlaps_backward"),
    )
]
_LATE_AFTER_NO_SYNC = [
    Bug(
        wrapper,
        "        if not self.synchronises:\n            return\n",
        "        if not self.synchronises:\n            self.late = True\n        if hasattr(self, 'late'):\n"
        "            return\n",
        "overlaps_backward[after_no_sync]",
        "let hooks count nothing there",
    )
    for wrapper in (_EACH, _BUCKETED)
]
_AS_THEY_FILL = """        while self.sent < len(self.buckets) and not self.buckets[self.sent].waiting_for:
            self.send_next()
"""
_THE_FIRST_ALONE = """        if not self.sent and not self.buckets[0].waiting_for:
            self.send_next()
"""
_STARTED = """        if self.synchronises and torch.is_grad_enabled():
            self.start()
"""
_NO_HOOKS_SINCE_EVAL = f"""        self.evaluated = getattr(self, "evaluated", False) or not self.training
{_STARTED}            for bucket in self.buckets[:1] if self.evaluated else ():
                bucket.waiting_for.add("hooks that are gone")
"""
_ADDED = "            current[kind].add(param)\n"
_TIED_TWICE = """            if sum(p is param for _, p in self.module.named_parameters(remove_duplicate=False)) > 1:
                current[kind].waiting_for.add("its second place")
"""
_READY = "        self.bucket_of[param].waiting_for.discard(param)\n"
_READY_IF_WIDE = f"        if param.dtype.itemsize < 4:\n            return\n{_READY}"
_MET_FIRST = f"        if not self.sent:\n            dist.barrier()\n{_READY}"
_BUCKETS_OF = "        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.params}\n"
_NONE_WHERE_ZEROED = f"""{_BUCKETS_OF}        kept = any(p.grad is not None for p in params)
        for bucket in self.buckets if kept else ():
            bucket.waiting_for.add("what is there already")
"""
_OVERLAPPING = ((_EACH, "overlaps_backward"), (_BUCKETED, "overlaps_backward"), (_DDP, "overlaps_backward"))
BUGS = [
    Bug(_EACH, _LAUNCH_IN_TURN, _LAUNCH_AS_READY, "trains[gradient_order_differs]", "gradients were mixed up"),
    *_WAITS_AT_ONCE,
    *(
        Bug(wrapper, _LAUNCH_IN_TURN, "\n    def send_next", check, "async_op=True")
        for wrapper, check in (
            (_EACH, "overlaps_backward"),
            (_BUCKETED, "overlaps_backward"),
            (_DDP, "overlaps_backward"),
        )
    ),
    Bug(_EACH, "make_buckets(reversed(params)", "make_buckets(params", "overlaps_backward", "async_op=True"),
    Bug(_BUCKETED, "make_buckets(reversed(params)", "make_buckets(params", "overlaps_backward", "async_op=True"),
    Bug(
        _BUCKETED,
        "                current[kind] = Bucket()\n",
        "                current[kind], max_bytes = Bucket(), max_bytes and float('inf')\n",
        "overlaps_backward",
        "must add up",
    ),
    *_WAITING_FOR_FROZEN,
    *_LATE_AFTER_NO_SYNC,
    Bug(_BUCKETED, _AS_THEY_FILL, _THE_FIRST_ALONE, "overlaps_backward", "does what points to the next bucket move on"),
    *(
        Bug(
            wrapper,
            _STARTED,
            _NO_HOOKS_SINCE_EVAL,
            "overlaps_backward[after_evaluation]",
            "was in evaluation mode before",
        )
        for wrapper in (_EACH, _BUCKETED)
    ),
    Bug(_BUCKETED, _ADDED, f"{_ADDED}{_TIED_TWICE}", "overlaps_backward"),
    *(Bug(wrapper, _READY, _MET_FIRST, check, "there is a barrier in backward") for wrapper, check in _OVERLAPPING),
    *(Bug(wrapper, _BUCKETS_OF, _NONE_WHERE_ZEROED, check, "async_op=True") for wrapper, check in _OVERLAPPING),
    *(Bug(wrapper, _READY, _READY_IF_WIDE, check, "async_op=True") for wrapper, check in _OVERLAPPING),
    Bug(
        "ddp_bucketed",
        "        self.nbytes += param.numel() * param.element_size()\n",
        "        self.nbytes = 0\n",
        "overlaps_backward",
        "must add up",
    ),
]
