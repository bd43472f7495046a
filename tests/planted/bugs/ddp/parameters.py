"""Bugs that only parameters of one kind show: frozen, tied, scalar, empty, sparse, large or not contiguous."""

from bug import Bug

_NAIVE = "naive_ddp"
_FLAT = "flat_ddp"
_EACH = "ddp_individual_parameters"
_BUCKETED = "ddp_bucketed"
_DDP = "ddp"
_SPEAK = "        self.handle = dist.all_reduce(self.flat, async_op=True)\n"
_NAIVE_FINISH = """        params = self.trainable()
        used = used_anywhere(params)
        for bucket in self.make_buckets(params, self.max_bytes):
            bucket.launch()
            bucket.collect(used)
"""
_TIED_TWICE = """        named = self.module.named_parameters(remove_duplicate=False)
        for param in [param for _, param in named if param.grad is not None]:
            dist.all_reduce(param.grad)
        for param in [param for param in self.trainable() if param.grad is not None]:
            param.grad /= dist.get_world_size()
"""
_ONCE_PER_TENSOR = """        params = [p for p in self.trainable() if p.grad is not None]
        params = [p for p in params if not hasattr(p.grad, "averaged")]
        used = set(params)
        for bucket in self.make_buckets(params, self.max_bytes):
            bucket.launch()
            bucket.collect(used)
        for param in params:
            param.grad.averaged = True
"""
_SUMMED = "summed, not averaged"
_NEVER = "never synchronised"
_WHOLE_CHUNKS = """        chunks = max(1, self.flat.numel() // 2**20)
        handles = [dist.all_reduce(chunk, async_op=True) for chunk in self.flat.split(2**20)[:chunks]]
        for handle in handles:
            handle.wait()
        self.handle = handle
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
_COPIED = "        value = tensor.detach().clone(memory_format=torch.contiguous_format)\n"
_MEMORY = "        tensor = value = tensor.data.as_strided((tensor.numel(),), (1,))\n"
_NAIVE_FINISHES = "        params = self.trainable()\n        used = used_anywhere(params)\n"
_BY_COUNT = """        if len(self.trainable()) != len(getattr(self, "params", ())):
            self.params = self.trainable()
        params = self.params
        used = used_anywhere(params)
"""
BUGS = [
    Bug(
        _NAIVE,
        "[*module.parameters(), *module.buffers()]",
        "[*self.trainable(), *module.buffers()]",
        "trains[frozen_parameters]",
        "exactly the frozen parameters",
    ),
    Bug(
        _EACH,
        "if p.requires_grad]",
        "]",
        "trains[frozen_parameters]",
        "a hook on a tensor",
    ),
    Bug(_NAIVE, _NAIVE_FINISH, _TIED_TWICE, "trains[tied_parameters]", _SUMMED),
    Bug(
        _NAIVE,
        "param.grad.detach().copy_(piece.view_as(param))",
        "param.grad.detach()[:] = piece.view_as(param)",
        "trains[scalar_parameter]",
        "IndexError",
    ),
    Bug(_FLAT, "grad.detach().reshape(-1) for", "grad.detach().view(-1) for", "trains[transposed_parameter]", "view"),
    Bug(
        _BUCKETED,
        "param.grad.detach().copy_(piece.view_as(param))",
        "param.grad.detach().copy_(piece.as_strided(param.shape, param.stride()))",
        "trains[transposed_parameter]",
        "in memory order",
    ),
    Bug(_NAIVE, _NAIVE_FINISH, _ONCE_PER_TENSOR, "trains[zero_grad_in_place]", _NEVER),
    Bug(
        _BUCKETED,
        "        params = self.trainable()\n        self.buckets",
        "        params = self.params = getattr(self, 'params', []) or self.trainable()\n        self.buckets",
        "trains[unfreezing_later]",
        _NEVER,
    ),
    Bug(
        _FLAT,
        "            if param not in used:\n",
        "            if param not in used or (param.grad is not None and param.grad.is_sparse):\n",
        "trains[sparse_gradients]",
        _NEVER,
    ),
    Bug(_FLAT, "    if not params:\n        return set()\n", "", "trains[freezing_later]", "IndexError"),
    Bug(
        _NAIVE,
        "        params = self.trainable()\n        used",
        "        params = self.trainable() or list(self.module.parameters())\n        used",
        "trains[freezing_later]",
        "still there was something to send",
    ),
    Bug(
        _NAIVE,
        "copy_(piece.view_as(param))",
        "copy_(piece.view_as(param) if param.dim() < 4 else piece.as_strided(param.shape, param.stride()))",
        "trains[convolution]",
        "in memory order",
    ),
    Bug(
        _FLAT,
        "        params = self.trainable()\n        used",
        "        params = [p for p in self.trainable() if p.dim() < 4]\n        used",
        "trains[convolution]",
        _NEVER,
    ),
    Bug(
        _NAIVE,
        "[p for p in self.module.parameters() if p.requires_grad]",
        "[p for name, p in self.module.named_parameters() if p.requires_grad and (p.dim() != 1 or 'bias' in name)]",
        "trains[other_layers]",
        _NEVER,
    ),
    Bug(
        _NAIVE,
        _NAIVE_FINISH,
        "        self.waits_for = getattr(self, 'waits_for', self.trainable())\n"
        f"        assert all(p.grad is not None for p in self.waits_for), 'a gradient never came'\n{_NAIVE_FINISH}",
        "trains[freezing_later]",
        "a gradient never came",
    ),
    Bug(
        _FLAT,
        "        self.flat = torch.cat(",
        "        largest = [grad.abs().max() for grad in grads]\n        self.flat = torch.cat(",
        "trains[parameters_of_any_shape]",
        "Expected reduction dim",
    ),
    *(
        Bug(
            wrapper,
            "        return self.module(*args, **kwargs)\n",
            "        if kwargs:\n            self.module.requires_grad_(True)\n"
            "        return self.module(*args, **kwargs)\n",
            "trains[everything_together]",
        )
        for wrapper in (_NAIVE, _FLAT)
    ),
    Bug(
        _NAIVE, _SPEAK, _SPEAK.replace("self.flat", "self.flat[: 2**20]"), "trains[large_parameters]", "layers.0.weight"
    ),
    Bug(_FLAT, _SPEAK, _WHOLE_CHUNKS, "trains[large_parameters]", "layers.0.weight"),
    Bug(
        _DDP,
        "        dist.broadcast(value.view(-1).view(torch.uint8), src=0)",
        "        dist.broadcast(value.view(-1).view(torch.uint8)[: 2**22], src=0)",
        "trains[large_parameters]",
        "Right after wrapping, `layers.0.weight` on rank 1 is not rank 0's",
    ),
    Bug(_NAIVE, _NAIVE_START, _GATHERS_ROWS, "trains[sparse_gradients]", "another size than on the other ranks"),
    Bug(
        _EACH,
        "        for bucket in self.buckets:\n            bucket.collect(used)\n",
        "        for bucket in self.buckets[-64:]:\n            bucket.collect(used)\n",
        "trains[large_parameters]",
        "a remainder that is lost",
    ),
    Bug("naive_ddp", _COPIED, _MEMORY, "trains[parameters_of_any_shape]", "a contiguous copy"),
    Bug(_FLAT, _NAIVE_FINISHES, _BY_COUNT, "trains[unfreezing_later]", "never synchronised"),
]
