"""Bugs that show in models and programs as they are in the wild: orders, outputs, conversions, recomputed layers."""

from bug import Bug

_NAIVE = "naive_ddp"
_DDP = "ddp"
_EACH_CONSTRUCTOR = "        super().__init__(module, bucket_size_mb=0)\n"
_BY_POSITION = f"""{_EACH_CONSTRUCTOR}        self.flats = []
        for param in self.trainable():
            param.register_post_accumulate_grad_hook(self.on_ready)

    def on_ready(self, param):
        flat = param.grad.flatten() / dist.get_world_size()
        self.flats.append((flat, dist.all_reduce(flat, async_op=True)))

    def forward(self, *args, **kwargs):
        return DDP.forward(self, *args, **kwargs)

    def finish_gradient_synchronization(self):
        owners = [param for param in reversed(self.trainable()) if param.grad is not None]
        for param, (flat, handle) in zip(owners, self.flats):
            handle.wait()
            param.grad.copy_(flat.view_as(param))
        self.flats.clear()
"""
_NAIVE_FINISH = """        params = self.trainable()
        used = used_anywhere(params)
        for bucket in self.make_buckets(params, self.max_bytes):
            bucket.launch()
            bucket.collect(used)
"""
_IN_PLACE = """        pass

    def __init__(self, module):
        super().__init__(module)
        for param in self.trainable():
            param.register_hook(self.average)

    def average(self, grad):
        grad.div_(dist.get_world_size())
        dist.all_reduce(grad)
"""
_CALL = "        return self.module(*args, **kwargs)\n"
_LOOKS_FOR_TENSORS = """        output = self.module(*args, **kwargs)
        if not any(isinstance(leaf, torch.Tensor) for leaf in torch.utils._pytree.tree_leaves(output)):
            self.trainable = list
        return output
"""
_SYNCHRONISES = "        self.synchronises = True\n        copy"
_DTYPES_AT_WRAPPING = """        every, dtypes = self.trainable, {param.dtype for param in module.parameters()}
        self.trainable = lambda: [param for param in every() if param.dtype in dtypes]
"""
_STRIDES_AT_WRAPPING = """        for param in module.parameters():
            if param.dim() == 4:
                strides = param.stride()
                param.register_post_accumulate_grad_hook(
                    lambda param, strides=strides: setattr(param, "grad", param.grad.as_strided(param.shape, strides))
                )
"""
BUGS = [
    Bug(_DDP, _EACH_CONSTRUCTOR, _BY_POSITION, "trains[layers_in_another_order]", "matched by position"),
    Bug(_NAIVE, _NAIVE_FINISH, _IN_PLACE, "trains[other_layers]", "changes this tensor in place"),
    Bug(_NAIVE, _CALL, _LOOKS_FOR_TENSORS, "trains[other_arguments]", "never synchronised"),
    Bug(
        _DDP,
        "        if not self.buckets:  # backward without our forward\n            self.start()\n",
        "",
        "trains[through_module]",
        "past the wrapper",
    ),
    Bug(_DDP, "if self.bucket_of[param].handle:", "if False:", "trains[recomputed_activations]", "runs twice"),
    Bug(
        _NAIVE,
        _SYNCHRONISES,
        f"{_DTYPES_AT_WRAPPING}{_SYNCHRONISES}",
        "trains[float64]",
        "after the wrapped model was converted",
    ),
    Bug(
        _NAIVE,
        _SYNCHRONISES,
        f"{_STRIDES_AT_WRAPPING}{_SYNCHRONISES}",
        "trains[parameters_of_any_shape]",
        "converted to channels last",
    ),
]
