"""A right synchronised batch norm."""

import torch
import torch.distributed as dist
from torch import nn


class Sum(torch.autograd.Function):
    """The sum over all ranks; the gradient of a sum that all ranks use is the sum of their gradients."""

    @staticmethod
    def forward(_, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class SyncBatchNorm(nn.modules.batchnorm._NormBase):
    def forward(self, x):
        shape = (1, -1) + (1,) * (x.dim() - 2)
        if self.training:
            rows = x.transpose(0, 1).flatten(1)
            count = torch.tensor([float(rows.shape[1])], dtype=x.dtype)
            moments = Sum.apply(torch.cat([rows.sum(1), count]))
            n = moments[-1].detach()
            mean = moments[:-1] / n
            var = Sum.apply((rows - mean[:, None]).square().sum(1)) / n
            if self.running_mean is not None:
                with torch.no_grad():
                    self.num_batches_tracked += 1
                    share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
                    self.running_mean.lerp_(mean, share)
                    self.running_var.lerp_(var * n / (n - 1), share)
        elif self.running_mean is None:
            var, mean = torch.var_mean(x, [0, *range(2, x.dim())], correction=0)
        else:
            mean, var = self.running_mean, self.running_var
        y = (x - mean.view(shape)) * (var.view(shape) + self.eps).rsqrt()
        return y if self.weight is None else y * self.weight.view(shape) + self.bias.view(shape)


def convert_sync_batchnorm(module, known=None):
    known = {} if known is None else known  # a norm at several places stays one
    if module in known:
        return known[module]
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        affine, track = module.weight is not None, module.running_mean is not None
        dtype = next((value.dtype for value in module.state_dict().values()), None)
        new = SyncBatchNorm(module.num_features, module.eps, module.momentum, affine, track, dtype=dtype)
        new.load_state_dict(module.state_dict())
        for name, p in module.named_parameters():
            new.get_parameter(name).requires_grad_(p.requires_grad)
        known[module] = new
        return new.train(module.training)
    for name, child in module.named_children():
        setattr(module, name, convert_sync_batchnorm(child, known))
    return module
