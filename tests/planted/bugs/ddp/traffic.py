"""Bugs in what is sent: results that nobody waits for, too many collectives, too many bytes, work that grows."""

from bug import REFUSES_SENT, Bug

_NAIVE = "naive_ddp"
_FLAT = "flat_ddp"
_EACH = "ddp_individual_parameters"
_BUCKETED = "ddp_bucketed"
_DDP = "ddp"
_FORGOTTEN_WAITS = [
    Bug(wrapper, "        self.handle.wait()\n", "", "results_are_waited_for", "Nobody waited at all for all_reduce")
    for wrapper in (_NAIVE, _FLAT, _EACH, _BUCKETED, _DDP)
]
_COLLECTED = "            bucket.collect(used)\n        self.buckets, self.sent = [], 0\n"
_SENT_AGAIN = [
    Bug(
        _BUCKETED,
        "    pass  # forward starts afresh by itself",
        "    for p in ddp_model.module.parameters():\n        __import__('torch').distributed.broadcast(p.data, src=0)",
        "sent_once",
        "were sent before backward",
    ),
    *(
        Bug(
            wrapper,
            _COLLECTED,
            f"{_COLLECTED}        for p in self.module.parameters():\n            dist.broadcast(p.data, src=0)\n",
            "sent_once",
            "beside an all_reduce of the",
        )
        for wrapper in (_EACH, _DDP)
    ),
]
_START = "    def start(self):\n"
_HOOKED_BY_TRAIN = """    def train(self, mode=True):
        for p in self.trainable() if mode else ():
            p.register_post_accumulate_grad_hook(lambda p: None)
        return super().train(mode)

"""
_NAIVE_FINISHES = "        params = self.trainable()\n        used = used_anywhere(params)\n"
_AFTER_TEN = """        self.steps_so_far = getattr(self, "steps_so_far", 0) + 1
        if self.steps_so_far > 10:
            used_anywhere(self.trainable())
"""
_FLAT_FINISHES = """def flat_ddp_on_after_backward(ddp_model, optimizer):
    ddp_model.finish_gradient_synchronization()
"""
_EACH_GROUP = """def flat_ddp_on_after_backward(ddp_model, optimizer):
    for group in optimizer.param_groups:
        ddp_model.trainable = lambda params=group["params"]: [p for p in params if p.requires_grad]
        ddp_model.finish_gradient_synchronization()
"""
BUGS = [
    *_FORGOTTEN_WAITS,
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
        "one_collective_per_dtype[two_dtypes]",
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
        "sent_once",
        "2 times the",
    ),
    *(
        Bug(
            wrapper,
            "        self.handle.wait()\n",
            "        self.handle.wait()\n        dist.all_reduce(self.flat.div_(dist.get_world_size()))\n",
            "sent_once",
            "2 times the",
        )
        for wrapper in (_NAIVE, _EACH, _BUCKETED, _DDP)
    ),
    *(
        Bug(
            wrapper,
            "        return self.module(*args, **kwargs)",
            "        copy_from_rank0(self.module.parameters())\n        return self.module(*args, **kwargs)",
            "sent_once",
            "when wrapping",
        )
        for wrapper in (_EACH, _DDP)
    ),
    *_SENT_AGAIN,
    *(
        Bug(
            wrapper,
            "[p for p in self.module.parameters() if p.requires_grad]",
            "[p for part in self.module.modules() for p in part.parameters(recurse=False) if p.requires_grad]",
            "sent_once",
            "times the",
        )
        for wrapper in (_NAIVE, _FLAT)
    ),
    Bug(
        _EACH,
        "                self.hooked.add(param)\n",
        "",
        "nothing_grows",
        "hooks on parameters after each step",
        REFUSES_SENT,
    ),
    Bug(
        _FLAT,
        "        params = self.trainable()\n        used",
        "        self.lost = [*getattr(self, 'lost', []), torch.ones(1)]\n"
        "        for tensor in self.lost:\n"
        "            dist.all_reduce(tensor)\n"
        "        params = self.trainable()\n        used",
        "nothing_grows",
        "collectives launched after each step",
    ),
    Bug(
        _EACH,
        "        self.handle.wait()\n",
        "        self.handle.wait()\n        Bucket.handles = [*getattr(Bucket, 'handles', []), self.handle]\n",
        "nothing_grows",
        "handles of collectives alive after each step",
    ),
    Bug(
        _BUCKETED,
        "        return self.module(*args, **kwargs)\n",
        "        self.outputs = [*getattr(self, 'outputs', []), self.module(*args, **kwargs)]\n"
        "        return self.outputs[-1]\n",
        "nothing_grows",
        "alive after each step",
    ),
    Bug(_NAIVE, _NAIVE_FINISHES, f"{_AFTER_TEN}{_NAIVE_FINISHES}", "nothing_grows", "collectives launched"),
    Bug(_EACH, _START, f"{_HOOKED_BY_TRAIN}{_START}", "nothing_grows", "hooks on parameters"),
    Bug(_FLAT, _FLAT_FINISHES, _EACH_GROUP, "one_collective_per_dtype", "reduce once"),
]
