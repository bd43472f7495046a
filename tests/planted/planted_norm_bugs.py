"""Bugs planted in the right synchronised batch norm, each with the check that catches it first."""

from bug import Bug

_NORM = "sync_batchnorm"
_OPTIONS = "affine, track = module.weight is not None, module.running_mean is not None"
_OUTPUT = "y if self.weight is None else y * self.weight.view(shape) + self.bias.view(shape)"
_BY_VALUES = """            count = torch.tensor([float(rows.shape[1])], dtype=x.dtype)
            moments = Sum.apply(torch.cat([rows.sum(1), count]))
            n = moments[-1].detach()
            mean = moments[:-1] / n
            var = Sum.apply((rows - mean[:, None]).square().sum(1)) / n
"""
_BY_SAMPLES = """            length = x.shape[2:].numel()
            moments = Sum.apply(torch.cat([rows.sum(1) / length, torch.tensor([float(len(x))], dtype=x.dtype)]))
            n = moments[-1].detach()
            mean = moments[:-1] / n
            var = Sum.apply((rows - mean[:, None]).square().sum(1) / length) / n
            n = n * length
"""
_LOCAL = """        if self.training and not torch.is_grad_enabled():
            state = (self.running_mean, self.running_var, self.weight, self.bias)
            return nn.functional.batch_norm(x, *state, True, self.momentum, self.eps)
        if self.training:
"""
NORM_BUGS = [
    Bug(
        _NORM, "        new.load_state_dict(module.state_dict())\n", "", "conversion_keeps_state", "conversion changed"
    ),
    Bug(
        _NORM,
        "dist.all_reduce(x)",
        "dist.all_reduce(x, async_op=True)",
        "statistics_are_waited_for",
        "Nobody waited at all for all_reduce",
    ),
    Bug(
        _NORM,
        "dist.all_reduce(grad)",
        "dist.all_reduce(grad, async_op=True)",
        "statistics_are_waited_for",
        "the gradient of the input",
    ),
    Bug(_NORM, "        dist.all_reduce(x)\n", "", "forward_over_all_ranks", "each rank's own statistics"),
    Bug(_NORM, "convert_sync_batchnorm(child, known)", "child", "forward_over_all_ranks", "each rank's own statistics"),
    Bug(_NORM, "n = moments[-1].detach()", "n = count * dist.get_world_size()", "forward_of_uneven_batches", ""),
    Bug(_NORM, "        dist.all_reduce(grad)\n", "", "backward_over_all_ranks", "in backward too"),
    Bug(_NORM, "var * n / (n - 1)", "var", "running_statistics", "divided by N, not by N - 1"),
    Bug(
        _NORM,
        "            mean, var = self",
        "            dist.barrier()\n            mean, var = self",
        "no_collective_in_evaluation",
        "collectives; expected none",
    ),
    Bug(_NORM, "y if self.weight is None else", "", "without_weight_and_bias", ""),
    Bug(
        _NORM,
        "moments[:-1] / n",
        "((moments / n).detach() + (moments - moments.detach()) / count / dist.get_world_size())[:-1]",
        "backward_of_uneven_batches",
        "the number of samples of all ranks",
    ),
    Bug(
        _NORM,
        "        return new",
        "        _ = affine and new.weight.register_hook(Sum.apply)\n        return new",
        "gradients_of_weight_and_bias",
        "Every rank has the sum over all",
    ),
    Bug(
        _NORM,
        "if self.training:",
        "if True:",
        "evaluation_by_running_statistics",
        "in evaluation mode",
    ),
    Bug(
        _NORM,
        "            rows = x",
        "            assert len(x)\n            rows = x",
        "rank_without_samples",
        "AssertionError",
    ),
    Bug(
        _NORM,
        "            if self.running_mean is not None:",
        "            if self.running_mean is not None and len(x):",
        "rank_without_samples",
        "on a rank without samples too",
    ),
    Bug(_NORM, "module.eps", "1e-5", "forward_over_all_ranks", "an eps of 1e-05, not the norm's own"),
    Bug(_NORM, "module.momentum", "0.1", "running_statistics", "a momentum of 0.1, not the norm's own"),
    Bug(_NORM, "1 / float(self.num_batches_tracked)", "0.1", "cumulative_average", "a momentum of 0.1"),
    Bug(
        _NORM,
        "1 / float(self.num_batches_tracked)",
        "1 / float(self.num_batches_tracked + 1)",
        "cumulative_average",
        "this one counted",
    ),
    Bug(_NORM, _OPTIONS, "affine = track = module.running_mean is not None", "without_weight_and_bias", "Missing key"),
    Bug(_NORM, _OPTIONS, "affine = track = module.weight is not None", "without_weight_and_bias", "Unexpected key"),
    Bug(
        _NORM,
        _OPTIONS,
        "affine, track = module.weight is not None, True",
        "without_running_statistics",
        "Missing key",
    ),
    Bug(
        _NORM,
        "nn.modules.batchnorm._BatchNorm",
        "(nn.BatchNorm1d, nn.BatchNorm2d)",
        "norms_of_volumes",
        "nn.BatchNorm3d",
    ),
    Bug(_NORM, "requires_grad_(p.requires_grad)", "requires_grad_(True)", "frozen_weight_and_bias", "it was frozen"),
    Bug(_NORM, ".train(module.training)", "", "conversion_keeps_the_mode", "in evaluation mode when it was converted"),
    Bug(
        _NORM,
        "convert_sync_batchnorm(child, known))\n    return module",
        "of_children(child, known))\n    return module\n\n\nof_children = convert_sync_batchnorm\n\n\n"
        "def convert_sync_batchnorm(module):\n    of_children(module)\n    return module",
        "norm_at_the_top",
        "Return the converted norm",
    ),
    Bug(
        _NORM,
        f"        return {_OUTPUT}",
        f"        y = {_OUTPUT}\n"
        "        _ = y.requires_grad and y.register_hook(lambda g: g.mul_(2) / 2)\n        return y",
        "changes_nothing_in_place",
        "changed the output's gradient in place",
    ),
    Bug(
        _NORM,
        "        shape = (1, -1)",
        "        x = x.mul_(2) / 2\n        shape = (1, -1)",
        "changes_nothing_in_place",
        "changed its input in place",
    ),
    Bug(
        _NORM,
        "            mean, var = self.running_mean, self.running_var\n",
        "            mean, var = self.running_mean, self.running_var\n            x = x.mul_(2) / 2\n",
        "changes_nothing_in_place",
        "changed its input in evaluation mode in place",
    ),
    Bug(
        _NORM,
        f"        return {_OUTPUT}",
        f"        self.spread = spread = float(var.detach().mean())\n        y = {_OUTPUT}\n"
        "        _ = y.requires_grad and y.register_hook(lambda g: g * (self.spread / spread))\n        return y",
        "forwards_before_backwards",
        "the next forward overwrites it",
    ),
    Bug(
        _NORM,
        "            mean, var = self.running_mean, self.running_var\n",
        "            mean, var = self.running_mean, self.running_var\n            x = x.detach()\n",
        "gradients_in_evaluation",
        "no `detach()` there",
    ),
    Bug(
        _NORM,
        "(rows - mean[:, None]).square().sum(1)) / n",
        "rows.square().sum(1)) / n - mean.square()",
        "statistics_far_from_zero",
        "E[x^2] - E[x]^2 cancels",
    ),
    Bug(
        _NORM,
        "            var = Sum",
        "            own = rows.sum(1) / count.clamp(min=1)\n"
        "            inner = (rows - own[:, None]).square().sum(1)\n"
        "            var = Sum.apply(inner + count * own.square()) / n - mean.square()\n"
        "            _ = Sum",
        "statistics_far_from_zero",
        "combine them (Chan et al.)",
    ),
    Bug(
        _NORM,
        "var = Sum.apply((rows - mean[:, None]).square().sum(1)) / n",
        "var = (Sum.apply(rows.square().sum(1)) / n - mean.square()).clamp(min=0)",
        "statistics_far_from_zero",
        "is not that of one process",
    ),
    Bug(_NORM, "with torch.no_grad():", "with torch.enable_grad():", "running_statistics", "autograd graphs"),
    Bug(
        _NORM,
        "rows = x.transpose(0, 1).flatten(1)",
        "rows = x.view(*x.shape[:2], x.shape[2:].numel()).transpose(0, 1).flatten(1)",
        "transposed_inputs",
        "RuntimeError",
    ),
    Bug(
        _NORM,
        "isinstance(module, nn.modules.batchnorm._BatchNorm)",
        "isinstance(module, nn.modules.batchnorm._NormBase)",
        "other_norms_stay",
        "`_NormBase`",
    ),
    Bug(
        _NORM,
        f"        return {_OUTPUT}\n",
        f"        output = {_OUTPUT}\n"
        "        if output.requires_grad:\n"
        "            output.register_hook(lambda g: g.view(*g.shape[:2], g.shape[2:].numel()).view(g.shape))\n"
        "        return output\n",
        "transposed_inputs",
        "view size",
    ),
    Bug(
        _NORM,
        "    for name, child in module.named_children():\n",
        "    if isinstance(module, nn.InstanceNorm2d):\n        module.__class__ = SyncBatchNorm\n"
        "    for name, child in module.named_children():\n",
        "other_norms_stay",
        "`_NormBase`",
    ),
    Bug(
        _NORM,
        _OUTPUT,
        _OUTPUT.replace("y * self.weight", "y * (self.weight if x.requires_grad else self.weight.detach())"),
        "gradients_of_the_first_layer",
        "The inputs need no gradient here",
    ),
    Bug(
        _NORM,
        "    if module in known:\n        return known[module]\n",
        "",
        "shared_norm_stays_shared",
        "one norm at two places",
    ),
    Bug(_NORM, _BY_VALUES, _BY_SAMPLES, "inputs_of_other_lengths", "whatever the length of these"),
    Bug(_NORM, "        if self.training:\n", _LOCAL, "statistics_without_gradients", "under `torch.no_grad()`"),
    Bug(
        _NORM,
        "        elif self.running_mean is None:\n",
        "        elif self.running_mean is None:\n            dist.barrier()\n",
        "no_collective_without_running_statistics",
        "uses those of the rank's batch",
    ),
]
