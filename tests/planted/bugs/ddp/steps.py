"""Bugs in how a training loop uses a wrapper: clipping, several backwards, `no_sync`, exceptions."""

from bug import REFUSES_SENT, Bug

_EACH = "ddp_individual_parameters"
_NAIVE = "naive_ddp"
_FLAT = "flat_ddp"
_BUCKETED = "ddp_bucketed"
_DDP = "ddp"
_NAIVE_FINISH = """        params = self.trainable()
        used = used_anywhere(params)
        for bucket in self.make_buckets(params, self.max_bytes):
            bucket.launch()
            bucket.collect(used)
"""
_GRADIENTS_FROM_FORWARD = """        for p, grad in zip(self.trainable(), self.grads, strict=True):
            mean = grad.contiguous() / dist.get_world_size()
            dist.all_reduce(mean)
            grad.copy_(mean)

    def forward(self, *args, **kwargs):
        for p in self.trainable() if torch.is_grad_enabled() else ():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        self.grads = [p.grad for p in self.trainable()]
        return super().forward(*args, **kwargs)
"""
_NEVER = "never synchronised"
_NAIVE_ADAPTER = """def naive_ddp_on_after_backward(ddp_model, optimizer):
    ddp_model.finish_gradient_synchronization()
"""
_BUCKETED_ADAPTERS = """def ddp_bucketed_on_after_backward(ddp_model, optimizer):
    ddp_model.finish_gradient_synchronization()


def ddp_bucketed_on_train_batch_start(ddp_model, optimizer):
    pass  # forward starts afresh by itself
"""
_NO_SYNC = """        before, self.synchronises = self.synchronises, False
        try:
            yield
        finally:
            self.synchronises = before
"""
_OFF_UNTIL_THE_END = """        self.synchronises = False
        finish, self.finish_gradient_synchronization = self.finish_gradient_synchronization, lambda: None
        yield
        self.finish_gradient_synchronization = finish
        self.synchronises = True
"""
_ENTER = "        before, self.synchronises = self.synchronises, False\n"
_CALL = "        return self.module(*args, **kwargs)\n"
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
BUGS = [
    Bug(
        _EACH,
        "        params = self.trainable()\n        self.buckets,",
        "        assert not self.buckets or self.sent\n        params = self.trainable()\n        self.buckets,",
        "trains[several_forwards]",
        "AssertionError",
    ),
    Bug(
        _NAIVE,
        _NAIVE_ADAPTER,
        _NAIVE_ADAPTER + "    averaged = [(p, p.grad.clone()) for p in ddp_model.trainable() if p.grad is not None]\n"
        "    optimizer.register_step_pre_hook(lambda *_: [p.grad.copy_(grad) for p, grad in averaged] and None)\n",
        "trains[clipped_gradients]",
    ),
    Bug(
        _BUCKETED,
        _BUCKETED_ADAPTERS,
        _BUCKETED_ADAPTERS.replace("    ddp_model.finish", "    ddp_model.begun and ddp_model.finish")
        .replace("\n\n\n", "\n    ddp_model.begun = False\n\n\n")
        .replace("    pass  # forward starts afresh by itself", "    ddp_model.begun = True"),
        "trains[accumulation]",
        "the last backward pass never synchronised",
    ),
    Bug(
        _BUCKETED,
        "        if self.synchronises and torch.is_grad_enabled():\n",
        "        if self.synchronises and torch.is_grad_enabled() and not self.buckets:\n",
        "trains[after_an_exception]",
        "A backward pass raised before this step",
        REFUSES_SENT,
    ),
    Bug(
        _EACH,
        "self.synchronises, False\n",
        "self.synchronises, True\n",
        "no_sync",
        "Under `no_sync` gradients only add up",
    ),
    Bug(
        _FLAT,
        "            self.synchronises = before\n",
        "            self.synchronises = before\n            self.module.zero_grad()\n",
        "no_sync",
        "the last backward pass alone",
    ),
    Bug(_FLAT, _NO_SYNC, _OFF_UNTIL_THE_END, "no_sync[exception]", "in a `finally`"),
    Bug(_EACH, _NO_SYNC, _OFF_UNTIL_THE_END, "no_sync", "put back what was before it"),
    Bug(
        _NAIVE,
        _NAIVE_ADAPTER,
        _NAIVE_ADAPTER.replace(
            "    ddp",
            "    held = [p for group in optimizer.param_groups for p in group['params']]\n"
            "    ddp_model.trainable = lambda: [p for p in held if p.requires_grad]\n    ddp",
        ),
        "trains[outside_the_optimizer]",
        _NEVER,
    ),
    Bug(
        _NAIVE,
        _NAIVE_FINISH,
        _GRADIENTS_FROM_FORWARD,
        "trains[between_forward_and_backward]",
        "before backward has begun",
    ),
    *(
        Bug(
            wrapper,
            "        if self.synchronises and torch.is_grad_enabled():\n",
            "        if self.synchronises and torch.is_grad_enabled() and self.sent < max(1, len(self.buckets)):\n",
            "trains[accumulation_before_finishing]",
            "out of date by then",
            REFUSES_SENT,
        )
        for wrapper in (_EACH, _BUCKETED, _DDP)
    ),
    Bug(_EACH, "synchronises = before", "synchronises = True", "no_sync", "put back what was before it"),
    Bug(
        _BUCKETED,
        _ENTER,
        f"        if dist.get_world_size() == 1:\n            return\n{_ENTER}",
        "no_sync",
        "generator didn't yield",
    ),
    Bug(_FLAT, _CALL, _LETS_IN + _CALL, "trains[gradient_penalty]", "penalty not trained on"),
    Bug(_NAIVE, _CALL, _COPIES_ARGUMENTS + _CALL, "trains[gradient_penalty]", "not a copy that is detached"),
    Bug(_EACH, _FINISH, _FINISHES_WITH_BACKWARD, "trains[gradient_penalty]", "never synchronised"),
]
