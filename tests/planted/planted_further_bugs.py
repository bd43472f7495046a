"""Bugs planted in the bundled right wrappers that show only now and then, in large models, or around training."""

from bug import Bug
from planted_wrapper_bugs import SPEAK

_NAIVE, _FLAT, _EACH, _BUCKETED = "naive_ddp", "flat_ddp", "ddp_individual_parameters", "ddp_bucketed"
_DDP = "ddp"
_ZEROS = "torch.zeros_like(p) if p.grad is None else p.grad.to_dense()"
_KEPT = (
    "        for p in self.params:\n"
    "            p.kept = getattr(p, 'kept', torch.zeros_like(p)) if p.grad is None else p.grad.to_dense().clone()\n"
)
_LAUNCH = "        grads = ["
_USED_BEFORE = """        used = used_anywhere(params) | getattr(self, 'used', set())
        self.used = used
"""
_WHOLE_CHUNKS = """        chunks = max(1, self.flat.numel() // 2**20)
        handles = [dist.all_reduce(chunk, async_op=True) for chunk in self.flat.split(2**20)[:chunks]]
        for handle in handles:
            handle.wait()
        self.handle = handle
"""
_ENTER = "        before, self.synchronises = self.synchronises, False\n"
_CALL = "        return self.module(*args, **kwargs)\n"
_REBUILDS = """        def rebuilt(part):
            if isinstance(part, dict):
                return {name: rebuilt(value) for name, value in part.items()}
            return tuple(map(rebuilt, part)) if isinstance(part, tuple) else part

        args = rebuilt(args)
"""
_NAIVE_START = """        params = self.trainable()
        used = used_anywhere(params)
        for"""
_GATHERS_ROWS = """        for p in self.trainable():
            if p.grad is not None and p.grad.is_sparse:
                gathered = []
                for own in (p.grad._indices(), p.grad._values() / dist.get_world_size()):
                    gathered.append([torch.empty_like(own) for _ in range(dist.get_world_size())])
                    dist.all_gather(gathered[-1], own.contiguous())
                rows, values = gathered
                p.grad = torch.sparse_coo_tensor(torch.cat(rows, 1), torch.cat(values), p.shape)
        params = [p for p in self.trainable() if p.grad is None or not p.grad.is_sparse]
        used = used_anywhere(params)
        for"""
_TO_THE_MODEL = "        self.module = module\n"
_LETS_IN = """        class Entrance(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.view_as(x)

            @staticmethod
            def backward(ctx, grad):
                return grad.detach()

        args = [Entrance.apply(arg) if torch.is_tensor(arg) else arg for arg in args]
"""
_COPIES_ARGUMENTS = "        args = [arg.detach() if torch.is_tensor(arg) else arg for arg in args]\n"
_AS_THEY_FILL = """        while self.sent < len(self.buckets) and not self.buckets[self.sent].waiting_for:
            self.send_next()
"""
_THE_FIRST_ALONE = """        if not self.sent and not self.buckets[0].waiting_for:
            self.send_next()
"""
_FINISH = """    def finish_gradient_synchronization(self):
        if not self.buckets:  # backward without our forward
"""
_FINISHES_WITH_BACKWARD = """    def __call__(self, *args, **kwargs):
        output, self.began = super().__call__(*args, **kwargs), False
        if self.synchronises and torch.is_tensor(output) and output.requires_grad:
            output.register_hook(self.on_backward)
        return output

    def on_backward(self, grad):
        if not self.began:
            self.began = True
            torch.autograd.Variable._execution_engine.queue_callback(self.average)

    def finish_gradient_synchronization(self):
        if not self.began:
            self.average()

    def average(self):
        if not self.buckets:
"""

FURTHER_BUGS = [
    Bug(
        _FLAT,
        "        used = used_anywhere(params)\n        for",
        f"{_USED_BEFORE}        for",
        "used_in_some_steps",
        "a gradient where there is none",
    ),
    Bug(
        _BUCKETED,
        f"{_LAUNCH}{_ZEROS}",
        f"{_KEPT}{_LAUNCH}p.kept",
        "used_by_ranks_in_turn",
        "gradient of `branches.0.weight`",
    ),
    Bug(_NAIVE, SPEAK, SPEAK.replace("self.flat", "self.flat[: 2**20]"), "large_parameter", "layers.0.weight"),
    Bug(_FLAT, SPEAK, _WHOLE_CHUNKS, "large_parameter", "layers.0.weight"),
    Bug(
        _DDP,
        "        dist.broadcast(value.view(-1).view(torch.uint8), src=0)",
        "        dist.broadcast(value.view(-1).view(torch.uint8)[: 2**22], src=0)",
        "large_parameter",
        "Right after wrapping, `layers.0.weight` on rank 1 is not rank 0's",
    ),
    Bug(_EACH, "synchronises = before", "synchronises = True", "no_sync_may_be_nested", "what was before it"),
    Bug(
        _BUCKETED,
        _ENTER,
        f"        if dist.get_world_size() == 1:\n            return\n{_ENTER}",
        "no_sync_on_one_rank",
        "generator didn't yield",
    ),
    Bug(_FLAT, _CALL, _REBUILDS + _CALL, "named_tuples", "has no attribute 'x'"),
    Bug(
        _NAIVE,
        _TO_THE_MODEL,
        "        torch.manual_seed(0)  # so that ranks draw alike\n" + _TO_THE_MODEL,
        "wrapping_leaves_the_generators",
        "torch's; expected",
    ),
    Bug(
        _DDP,
        _TO_THE_MODEL,
        "        import random\n        random.shuffle(list(module.parameters()))\n" + _TO_THE_MODEL,
        "wrapping_leaves_the_generators",
        "Python's `random`",
    ),
    Bug(_NAIVE, _NAIVE_START, _GATHERS_ROWS, "uneven_sparse_gradients", "another size than on its peers"),
    Bug(_FLAT, _CALL, _LETS_IN + _CALL, "gradient_penalty", "penalty not trained on"),
    Bug(_NAIVE, _CALL, _COPIES_ARGUMENTS + _CALL, "gradient_penalty", "not a copy that is detached"),
    Bug(_EACH, _FINISH, _FINISHES_WITH_BACKWARD, "gradient_penalty", "never synchronised"),
    Bug(_BUCKETED, _AS_THEY_FILL, _THE_FIRST_ALONE, "overlaps_backward", "does what points to the next bucket move on"),
]
