"""Bugs planted in the bundled right wrappers that only other models and schedules than the plainest show."""

from bug import Bug
from planted_wrapper_bugs import NAIVE_FINISH

_NAIVE, _FLAT, _EACH, _BUCKETED = "naive_ddp", "flat_ddp", "ddp_individual_parameters", "ddp_bucketed"
_DDP = "ddp"
_USED = "        used = used_anywhere(self.trainable())\n"
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
_CALL = "        return self.module(*args, **kwargs)\n"
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
_TRAINABLE = "    def trainable(self):\n"
_LOADS_WHAT_IT_KNOWS = """    def load_state_dict(self, state, **kwargs):
        return self.module.load_state_dict(state, strict=False)

"""
_LOADS_OTHER_NAMES = """    def load_state_dict(self, state, **kwargs):
        return self.module.load_state_dict(state)

"""
_ASSIGNS_LOADED = """    def load_state_dict(self, state, **kwargs):
        return super().load_state_dict(state, assign=True)

"""
TRAINING_BUGS = [
    Bug(
        _EACH,
        "                self.hooked.add(param)\n",
        "",
        "work_does_not_grow",
        "hooks on parameters after each step",
    ),
    Bug(
        _FLAT,
        "        params = self.trainable()\n        used",
        "        self.lost = [*getattr(self, 'lost', []), torch.ones(1)]\n"
        "        for tensor in self.lost:\n"
        "            dist.all_reduce(tensor)\n"
        "        params = self.trainable()\n        used",
        "work_does_not_grow",
        "collectives launched after each step",
    ),
    Bug(
        _EACH,
        "        self.handle.wait()\n",
        "        self.handle.wait()\n        Bucket.handles = [*getattr(Bucket, 'handles', []), self.handle]\n",
        "memory_does_not_grow",
        "handles of collectives alive after each step",
    ),
    Bug(
        _BUCKETED,
        "        return self.module(*args, **kwargs)\n",
        "        self.outputs = [*getattr(self, 'outputs', []), self.module(*args, **kwargs)]\n"
        "        return self.outputs[-1]\n",
        "memory_does_not_grow",
        "alive after each step",
    ),
    Bug(
        _NAIVE,
        "copy_(piece.view_as(param))",
        "copy_(piece.view_as(param) if param.dim() < 4 else piece.as_strided(param.shape, param.stride()))",
        "convolution",
        "in memory order",
    ),
    Bug(
        _FLAT,
        "        params = self.trainable()\n        used",
        "        params = [p for p in self.trainable() if p.dim() < 4]\n        used",
        "convolution",
        _NEVER,
    ),
    Bug(
        _NAIVE,
        "[p for p in self.module.parameters() if p.requires_grad]",
        "[p for name, p in self.module.named_parameters() if p.requires_grad and (p.dim() != 1 or 'bias' in name)]",
        "layers_of_other_kinds",
        _NEVER,
    ),
    Bug(
        _NAIVE,
        _NAIVE_ADAPTER,
        _NAIVE_ADAPTER + "    averaged = [(p, p.grad.clone()) for p in ddp_model.trainable() if p.grad is not None]\n"
        "    optimizer.register_step_pre_hook(lambda *_: [p.grad.copy_(grad) for p, grad in averaged] and None)\n",
        "gradient_clipping",
    ),
    Bug(
        _NAIVE,
        _CALL,
        f"        if not torch.is_grad_enabled():\n            self.module.requires_grad_(False)\n{_CALL}",
        "evaluation_between_steps",
        "does not require grad",
    ),
    Bug(
        _NAIVE,
        _CALL,
        "        sizes = [torch.tensor(0) for _ in range(dist.get_world_size())]\n"
        "        dist.all_gather(sizes, torch.tensor(len(args[0])))\n"
        f"        assert len({{int(size) for size in sizes}}) == 1, 'batches differ'\n{_CALL}",
        "uneven_batches",
        "batches differ",
    ),
    Bug(
        _NAIVE,
        NAIVE_FINISH,
        "        self.waits_for = getattr(self, 'waits_for', self.trainable())\n"
        f"        assert all(p.grad is not None for p in self.waits_for), 'a gradient never came'\n{NAIVE_FINISH}",
        "freezing_after_wrapping",
        "a gradient never came",
    ),
    Bug(
        _FLAT,
        "        self.flat = torch.cat(",
        "        largest = [grad.abs().max() for grad in grads]\n        self.flat = torch.cat(",
        "empty_parameter",
        "Expected reduction dim",
    ),
    Bug(_FLAT, _CALL, _CALL.replace("*args", "*[arg.cpu() for arg in args]"), "nested_arguments", "no attribute 'cpu'"),
    Bug(
        _BUCKETED,
        _BUCKETED_ADAPTERS,
        _BUCKETED_ADAPTERS.replace("    ddp_model.finish", "    ddp_model.begun and ddp_model.finish")
        .replace("\n\n\n", "\n    ddp_model.begun = False\n\n\n")
        .replace("    pass  # forward starts afresh by itself", "    ddp_model.begun = True"),
        "accumulates_gradients",
        "the last backward pass never synchronised",
    ),
    Bug(
        _NAIVE,
        _CALL,
        "        for layer in self.module.layers:\n"
        "            layer.register_forward_pre_hook(\n"
        "                lambda *_: None if torch._C._current_graph_task_id() < 0 else self.rewind())\n"
        f"{_CALL}",
        "recomputed_activations",
        "rewind",
    ),
    Bug(
        _BUCKETED,
        "        if self.synchronises and torch.is_grad_enabled():\n",
        "        if self.synchronises and torch.is_grad_enabled() and not self.buckets:\n",
        "recovers_from_an_exception",
    ),
    Bug(
        _EACH,
        "self.synchronises, False\n",
        "self.synchronises, True\n",
        "accumulates_without_synchronising",
        "Under `no_sync` gradients only add up",
    ),
    Bug(
        _FLAT,
        "            self.synchronises = before\n",
        "            self.synchronises = before\n            self.module.zero_grad()\n",
        "accumulates_without_synchronising",
        "the last backward pass alone",
    ),
    Bug(_FLAT, _NO_SYNC, _OFF_UNTIL_THE_END, "no_sync_ends_with_an_exception", "in a `finally`"),
    Bug(_EACH, _NO_SYNC, _OFF_UNTIL_THE_END, "no_sync_ends_with_an_exception", "in a `finally`"),
    Bug(_NAIVE, _TRAINABLE, _LOADS_WHAT_IT_KNOWS + _TRAINABLE, "loaded_weights_are_trained", "loaded weights not used"),
    Bug(
        _EACH,
        _TRAINABLE,
        _LOADS_OTHER_NAMES + _TRAINABLE,
        "loaded_weights_are_trained",
        "the model's alone has no prefix",
    ),
    Bug(_BUCKETED, _TRAINABLE, _ASSIGNS_LOADED + _TRAINABLE, "loaded_weights_are_trained", "without `assign=True`"),
    Bug(
        _NAIVE,
        NAIVE_FINISH,
        f"        if not self.training:\n            return\n{NAIVE_FINISH}",
        "trains_in_evaluation_mode",
        _NEVER,
    ),
    Bug(
        _NAIVE,
        _NAIVE_ADAPTER,
        _NAIVE_ADAPTER.replace(
            "    ddp",
            "    held = [p for group in optimizer.param_groups for p in group['params']]\n"
            "    ddp_model.trainable = lambda: [p for p in held if p.requires_grad]\n    ddp",
        ),
        "gradients_outside_the_optimizer",
        _NEVER,
    ),
    Bug(
        _NAIVE,
        "p.grad.to_dense() for",
        "torch.nan_to_num(p.grad.to_dense(), 0.0, 0.0, 0.0) for",
        "overflow_reaches_every_rank",
        "are finite all the same",
    ),
    Bug(
        _DDP,
        "    dist.all_reduce(flags, op=dist.ReduceOp.MAX)\n",
        "    dist.broadcast(flags, src=0)\n",
        "unused_on_some_ranks",
    ),
    Bug(_BUCKETED, "numel() * param.element_size()", "numel() * 4", "bucket_size_respected", "element_size()"),
    *(
        Bug(
            wrapper,
            _USED,
            f"{_USED}        used -= {{p for b in self.buckets for p in b.waiting_for if p.grad is not None}}\n",
            "unused_in_the_last_micro_batch",
            "look at `.grad` of all parameters",
        )
        for wrapper in (_EACH, _BUCKETED, _DDP)
    ),
    Bug(_NAIVE, NAIVE_FINISH, _GRADIENTS_FROM_FORWARD, "cleared_after_forward", "before backward has begun"),
    *(
        Bug(
            wrapper,
            "        if self.synchronises and torch.is_grad_enabled():\n",
            "        if self.synchronises and torch.is_grad_enabled() and self.sent < max(1, len(self.buckets)):\n",
            "accumulates_before_finishing",
            "out of date by then",
        )
        for wrapper in (_EACH, _BUCKETED, _DDP)
    ),
    *(
        Bug(
            wrapper,
            "        return self.module(*args, **kwargs)\n",
            "        if kwargs:\n            self.module.requires_grad_(True)\n"
            "        return self.module(*args, **kwargs)\n",
            "everything_together",
        )
        for wrapper in (_NAIVE, _FLAT)
    ),
]
