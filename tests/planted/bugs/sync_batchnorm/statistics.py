"""Bugs in the statistics over all ranks, in forward, in backward and in evaluation."""

from bug import Bug

_NORM = "sync_batchnorm"
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
_VARIANCE = "            var = Sum.apply((rows - mean[:, None]).square().sum(1)) / n\n"
_UNBIASED_FIRST = """            own = rows.shape[1]
            apart = mean * 0
            if own:
                apart = rows.var(1) * (own - 1) + own * (rows.mean(1) - mean).square()
            var = Sum.apply(apart) / n
"""
_ROWS = "            rows = x.transpose(0, 1).flatten(1)\n"
_REFUSES_ONE = f"""            if x.numel() == x.shape[1]:
                raise ValueError("Expected more than 1 value per channel when training")
{_ROWS}"""
_SHAPE = "        shape = (1, -1) + (1,) * (x.dim() - 2)\n"
_FROZEN_INPUT = f"""{_SHAPE}        if self.weight is not None and not self.weight.requires_grad:
            x = x.detach()
"""
BUGS = [
    Bug(
        _NORM,
        "dist.all_reduce(x)",
        "dist.all_reduce(x, async_op=True)",
        "results_are_waited_for",
        "Nobody waited at all for all_reduce",
    ),
    Bug(
        _NORM,
        "dist.all_reduce(grad)",
        "dist.all_reduce(grad, async_op=True)",
        "results_are_waited_for",
        "the gradient of the input",
    ),
    Bug(_NORM, "        dist.all_reduce(x)\n", "", "forward_over_all_ranks", "each rank's own statistics"),
    Bug(_NORM, "convert_sync_batchnorm(child, known)", "child", "forward_over_all_ranks", "each rank's own statistics"),
    Bug(_NORM, "n = moments[-1].detach()", "n = count * dist.get_world_size()", "trains[uneven_batches]", ""),
    Bug(_NORM, "        dist.all_reduce(grad)\n", "", "backward_over_all_ranks", "in backward too"),
    Bug(_NORM, _SHAPE, _FROZEN_INPUT, "trains[frozen_parameters]", "No gradient reached the input"),
    Bug(_NORM, "var * n / (n - 1)", "var", "running_statistics", "divided by N, not by N - 1"),
    Bug(
        _NORM,
        "            mean, var = self",
        "            dist.barrier()\n            mean, var = self",
        "no_collective_in_evaluation",
        "collectives; expected none",
    ),
    Bug(
        _NORM,
        "moments[:-1] / n",
        "((moments / n).detach() + (moments - moments.detach()) / count / dist.get_world_size())[:-1]",
        "trains[uneven_batches]",
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
    Bug(_NORM, "1 / float(self.num_batches_tracked)", "0.1", "conversion[options]", "a momentum of 0.1"),
    Bug(
        _NORM,
        "1 / float(self.num_batches_tracked)",
        "1 / float(self.num_batches_tracked + 1)",
        "conversion[options]",
        "this one counted",
    ),
    Bug(
        _NORM,
        "nn.modules.batchnorm._BatchNorm",
        "(nn.BatchNorm1d, nn.BatchNorm2d)",
        "trains[other_layers]",
        "nn.BatchNorm3d",
    ),
    Bug(
        _NORM,
        f"        return {_OUTPUT}",
        f"        y = {_OUTPUT}\n"
        "        _ = y.requires_grad and y.register_hook(lambda g: g.mul_(2) / 2)\n        return y",
        "arguments_stay",
        "changed the output's gradient in place",
    ),
    Bug(
        _NORM,
        "        shape = (1, -1)",
        "        x = x.mul_(2) / 2\n        shape = (1, -1)",
        "arguments_stay",
        "changed its input in place",
    ),
    Bug(
        _NORM,
        "            mean, var = self.running_mean, self.running_var\n",
        "            mean, var = self.running_mean, self.running_var\n            x = x.mul_(2) / 2\n",
        "arguments_stay",
        "changed its input in evaluation mode in place",
    ),
    Bug(
        _NORM,
        f"        return {_OUTPUT}",
        f"        self.spread = spread = float(var.detach().mean())\n        y = {_OUTPUT}\n"
        "        _ = y.requires_grad and y.register_hook(lambda g: g * (self.spread / spread))\n        return y",
        "trains[several_forwards]",
        "the next forward overwrites it",
    ),
    Bug(
        _NORM,
        "            mean, var = self.running_mean, self.running_var\n",
        "            mean, var = self.running_mean, self.running_var\n            x = x.detach()\n",
        "trains[evaluation_mode]",
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
        "trains[other_inputs]",
        "RuntimeError",
    ),
    Bug(
        _NORM,
        f"        return {_OUTPUT}\n",
        f"        output = {_OUTPUT}\n"
        "        if output.requires_grad:\n"
        "            output.register_hook(lambda g: g.view(*g.shape[:2], g.shape[2:].numel()).view(g.shape))\n"
        "        return output\n",
        "trains[other_inputs]",
        "view size",
    ),
    Bug(
        _NORM,
        _OUTPUT,
        _OUTPUT.replace("y * self.weight", "y * (self.weight if x.requires_grad else self.weight.detach())"),
        "gradients_of_weight_and_bias[first_layer]",
        "The inputs need no gradient here",
    ),
    Bug(_NORM, _BY_VALUES, _BY_SAMPLES, "trains[other_inputs]", "whatever the length of these"),
    Bug(_NORM, "        if self.training:\n", _LOCAL, "statistics_without_gradients", "under `torch.no_grad()`"),
    Bug(
        _NORM,
        "        elif self.running_mean is None:\n",
        "        elif self.running_mean is None:\n            dist.barrier()\n",
        "conversion[options]",
        "uses those of the rank's batch",
    ),
    Bug(_NORM, _VARIANCE, _UNBIASED_FIRST, "one_sample_on_each_rank"),
    Bug(_NORM, _ROWS, _REFUSES_ONE, "one_sample_on_each_rank", "Expected more than 1 value per channel"),
    Bug(
        _NORM,
        "if self.momentum is None else",
        "if not self.momentum else",
        "running_statistics",
    ),
]
