"""Bugs planted in the bundled right wrappers in what they send: whether it is waited for, when, how often, how much."""

from bug import Bug
from planted_wrapper_bugs import LAUNCH_IN_TURN, SPEAK

_NAIVE, _FLAT, _EACH, _BUCKETED, _DDP = "naive_ddp", "flat_ddp", "ddp_individual_parameters", "ddp_bucketed", "ddp"

_FORGOTTEN_WAITS = [
    Bug(wrapper, "        self.handle.wait()\n", "", "results_are_waited_for", "Nobody waited at all for all_reduce")
    for wrapper in (_NAIVE, _FLAT, _EACH, _BUCKETED, _DDP)
]
_WAITS_AT_ONCE = [
    Bug(wrapper, SPEAK, f"{SPEAK}        self.handle.wait()\n", check, "backward stands still")
    for wrapper, check in (
        (_EACH, "overlaps_backward"),
        (_BUCKETED, "overlaps_backward"),
        (_DDP, "starts_in_backward"),
    )
]
_COLLECTED = "            bucket.collect(used)\n        self.buckets, self.sent = [], 0\n"
_SENT_AGAIN = [
    Bug(
        _BUCKETED,
        "    pass  # forward starts afresh by itself",
        "    for p in ddp_model.module.parameters():\n        __import__('torch').distributed.broadcast(p.data, src=0)",
        "gradients_travel_once",
        "were sent before backward",
    ),
    *(
        Bug(
            wrapper,
            _COLLECTED,
            f"{_COLLECTED}        for p in self.module.parameters():\n            dist.broadcast(p.data, src=0)\n",
            "gradients_travel_once",
            "beside an all_reduce of the",
        )
        for wrapper in (_EACH, _DDP)
    ),
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
        (_DDP, "starts_in_backward"),
    )
]
_LATE_AFTER_NO_SYNC = [
    Bug(
        wrapper,
        "        if not self.synchronises:\n            return\n",
        "        if not self.synchronises:\n            self.late = True\n        if hasattr(self, 'late'):\n"
        "            return\n",
        "overlaps_after_no_sync",
        "let hooks count nothing there",
    )
    for wrapper in (_EACH, _BUCKETED)
]

_ADDED = "            current[kind].add(param)\n"
_WITH_FROZEN_ONES = """            if any(not p.requires_grad for p in self.module.parameters()):
                current[kind].nbytes += 2 * nbytes
"""
_FULL = "            if kind not in current or current[kind].nbytes + nbytes > max_bytes:\n"
_OTHERS_CLOSED = "            current = {kind: current[kind]} if kind in current else {}\n"
TRAFFIC_BUGS = [
    *_FORGOTTEN_WAITS,
    *_WAITS_AT_ONCE,
    Bug(
        _NAIVE,
        "torch.uint8), src=0)",
        "torch.uint8), src=0, async_op=True)",
        "results_are_waited_for",
        "Right after wrapping",
    ),
    Bug(_FLAT, 'max_bytes = float("inf")\n\n', "max_bytes = 0\n\n", "one_collective_per_dtype", "reduce once"),
    Bug(
        _FLAT,
        "self.make_buckets(params, self.max_bytes)",
        "self.make_buckets(params, self.max_bytes if len({p.dtype for p in params}) == 1 else 0)",
        "as_many_collectives_as_dtypes",
        "Group the parameters by dtype",
    ),
    Bug(
        _EACH,
        "current[kind].nbytes + nbytes > max_bytes",
        "len(current[kind].params) == 2",
        "one_collective_per_parameter",
        "expected one each",
    ),
    Bug(
        _FLAT,
        "        self.handle = dist.all_reduce(self.flat, async_op=True)\n",
        "        twice = torch.cat([self.flat, self.flat])\n        self.flat = twice[: self.flat.numel()]\n"
        "        self.handle = dist.all_reduce(twice, async_op=True)\n",
        "gradients_travel_once",
        "2 times the",
    ),
    *(
        Bug(
            wrapper,
            "        self.handle.wait()\n",
            "        self.handle.wait()\n        dist.all_reduce(self.flat.div_(dist.get_world_size()))\n",
            "gradients_travel_once",
            "2 times the",
        )
        for wrapper in (_NAIVE, _EACH, _BUCKETED, _DDP)
    ),
    *(
        Bug(
            wrapper,
            "        return self.module(*args, **kwargs)",
            "        copy_from_rank0(self.module.parameters())\n        return self.module(*args, **kwargs)",
            "gradients_travel_once",
            "when wrapping",
        )
        for wrapper in (_EACH, _DDP)
    ),
    *(
        Bug(wrapper, LAUNCH_IN_TURN, "\n    def send_next", check, "async_op=True")
        for wrapper, check in (
            (_EACH, "overlaps_backward"),
            (_BUCKETED, "overlaps_backward"),
            (_DDP, "starts_in_backward"),
        )
    ),
    Bug(_EACH, "make_buckets(reversed(params)", "make_buckets(params", "overlaps_backward", "async_op=True"),
    Bug(_BUCKETED, "make_buckets(reversed(params)", "make_buckets(params", "overlaps_backward", "async_op=True"),
    Bug(
        _BUCKETED,
        "        for bucket in self.buckets:\n            bucket.collect(used)\n",
        "        for bucket in self.buckets[:-1]:\n            bucket.collect(used)\n",
        "gradients_averaged",
        "bucket",
    ),
    Bug(
        _BUCKETED,
        "bucket_size_mb * 1024 * 1024",
        "bucket_size_mb * 1024",
        "bucket_size_respected",
        "A bucket is full when",
    ),
    Bug(_BUCKETED, "bucket_size_mb * 1024 * 1024", "0", "bucket_size_respected", "A bucket is full when"),
    Bug(
        _BUCKETED,
        "                current[kind] = Bucket()\n",
        "                current[kind], max_bytes = Bucket(), max_bytes and float('inf')\n",
        "overlaps_backward",
        "async_op=True",
    ),
    Bug(
        _BUCKETED,
        'float("inf") if bucket_size_mb is None else bucket_size_mb',
        "bucket_size_mb",
        "unbounded_bucket",
        "TypeError",
    ),
    Bug(
        _BUCKETED,
        'float("inf") if bucket_size_mb is None else bucket_size_mb * 1024 * 1024',
        "25 if bucket_size_mb is None else bucket_size_mb * 1024 * 1024",
        "unbounded_bucket",
        "None means that no bucket",
    ),
    Bug(_FLAT, "    if not params:\n        return set()\n", "", "everything_frozen", "IndexError"),
    Bug(
        _NAIVE,
        "        params = self.trainable()\n        used",
        "        params = self.trainable() or list(self.module.parameters())\n        used",
        "everything_frozen",
        "still there was something to send",
    ),
    *_SENT_AGAIN,
    *_WAITING_FOR_FROZEN,
    *_LATE_AFTER_NO_SYNC,
    *(
        Bug(
            wrapper,
            "[p for p in self.module.parameters() if p.requires_grad]",
            "[p for part in self.module.modules() for p in part.parameters(recurse=False) if p.requires_grad]",
            "gradients_travel_once",
            "times the",
        )
        for wrapper in (_NAIVE, _FLAT)
    ),
    Bug(
        _BUCKETED, _ADDED, f"{_ADDED}{_WITH_FROZEN_ONES}", "bucket_size_of_what_trains", "Frozen parameters lie between"
    ),
    Bug(_BUCKETED, _FULL, f"{_OTHERS_CLOSED}{_FULL}", "bucket_of_each_dtype", "Keep one bucket open for each dtype"),
]
