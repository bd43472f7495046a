"""Batch normalization over the batches of all ranks, as if they were one.

A rank that normalizes by its own share of the batch trains another model than one process would: noisier statistics,
and running averages that drift apart. Here mean and variance are those of the whole batch, and so is the gradient: a
sample moves the statistics that every rank normalizes by, so its gradient has a part from every rank's loss.

Forward: each rank's count, mean and sum of squared deviations are gathered and combined without cancellation (Chan et
al.). Backward: with y = x' w + b and x' = (x - mean) / std over n samples of all ranks, and g the gradient of y,

    grad x = w / std * (g - sum(g) / n - x' sum(g x') / n),

both sums over all ranks. The gradients of w and b stay this rank's own: a data-parallel wrapper averages them with all
the others. One collective each way; every rank takes part, also with an empty batch.

Source: Ioffe, Szegedy, "Batch Normalization" (2015), section 3; Chan, Golub, LeVeque, "Updating Formulae and a Pairwise
Algorithm for Computing Sample Variances" (1979); `torch.nn.SyncBatchNorm`, which runs on GPUs only.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

_CONVERTED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class SyncBatchNorm(_BatchNorm):
    """Batch normalization over the batches of all ranks; in eval mode, and without running statistics, as torch's.

    Raises:
        ValueError: in forward, for an input without channels, or fewer than two values a channel on all ranks together.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalize `x` of shape (batch, channels, ...); call on every rank, with any batch sizes."""
        if x.dim() < 2:  # noqa: PLR2004  # batch and channels
            raise ValueError(f"SyncBatchNorm got a tensor of shape {tuple(x.shape)}; expected (batch, channels, ...)")
        if not self.training and self.running_mean is not None:
            return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        y, mean, deviations, count = _Normalize.apply(x, self.weight, self.bias, self.eps)
        if self.training and self.running_mean is not None:
            self._track(mean, deviations / (count - 1))
        return y  # type: ignore[no-any-return]

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None, "the caller has looked"  # noqa: S101
        assert self.running_var is not None, "there are both or none"  # noqa: S101
        assert self.num_batches_tracked is not None, "likewise"  # noqa: S101
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)

    def _check_input_dim(self, _: Tensor) -> None:
        """Any number of dimensions."""


def convert_sync_batchnorm(module: nn.Module) -> nn.Module:
    """Have every batch norm layer in the module, or the module itself, normalize over all ranks. Changes it in place.

    Layers stay the objects that they are, with their parameters, buffers, hooks and names. Convert before wrapping.

    Raises:
        TypeError: for a layer of a class derived from batch norm, whose own code would be lost.
    """
    for name, layer in module.named_modules():
        if type(layer) in _CONVERTED:
            layer.__class__ = SyncBatchNorm
        elif isinstance(layer, _BatchNorm) and type(layer) is not SyncBatchNorm:
            raise TypeError(
                f"{name or 'the module'} is a {type(layer).__name__}, which convert_sync_batchnorm cannot replace: it "
                f"knows {', '.join(known.__name__ for known in _CONVERTED)}. Initialize a lazy layer first; make a "
                "layer of a class of your own one of these."
            )
    return module


class _Normalize(torch.autograd.Function):
    """From x to its normalized, scaled and shifted values; also the mean, the squared deviations' sum and the count."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        wide = x.to(_wider(x.dtype))
        count, mean, deviations = _statistics(wide)
        if float(count) < 2:  # noqa: PLR2004
            raise ValueError(
                f"SyncBatchNorm got {int(count)} value per channel on all ranks together (this rank: shape "
                f"{tuple(x.shape)}); a variance takes at least 2. Use larger batches, or eval mode."
            )
        scale = torch.rsqrt(deviations / count + eps)
        normalized = (wide - _per_channel(mean, x)) * _per_channel(scale, x)
        ctx.save_for_backward(normalized, weight, scale, count)
        ctx.mark_non_differentiable(mean, deviations, count)
        y = normalized if weight is None else normalized * _per_channel(weight, x)
        y = y if bias is None else y + _per_channel(bias, x)
        return y.to(x.dtype), mean, deviations, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        normalized, weight, scale, count = ctx.saved_tensors
        wide = gradient.to(normalized.dtype)
        of_bias, of_weight = _sum(wide), _sum(wide * normalized)
        sums = torch.stack([of_bias, of_weight])
        _all_reduce(sums)
        means = [_per_channel(total / count, gradient) for total in sums]
        scale = scale if weight is None else scale * weight
        of_x = _per_channel(scale, gradient) * (wide - means[0] - normalized * means[1])
        own = (None, None) if weight is None else (of_weight.to(weight.dtype), of_bias.to(weight.dtype))
        return of_x.to(gradient.dtype), *own, None


def _statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and sum of squared deviations per channel, over all ranks."""
    count = x.numel() // x.shape[1]
    mean = _sum(x) / max(count, 1)
    deviations = _sum((x - _per_channel(mean, x)).square())
    counts, means, all_deviations = _gather(torch.stack([torch.full_like(mean, count), mean, deviations]))
    total = counts.sum(0)
    mean = (counts * means).sum(0) / total.clamp(min=1)
    return total[0], mean, (all_deviations + counts * (means - mean).square()).sum(0)


def _gather(mine: Tensor) -> Tensor:
    """Every rank's (3, channels) as (3, ranks, channels)."""
    if not dist.is_initialized():
        return mine.unsqueeze(1)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return torch.stack(parts, dim=1)


def _all_reduce(sums: Tensor) -> None:
    if dist.is_initialized():
        dist.all_reduce(sums)


def _sum(x: Tensor) -> Tensor:
    """Sum over all dimensions but the channels."""
    return x.sum([dim for dim in range(x.dim()) if dim != 1])


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    """A view of (channels,) that broadcasts along the channels of `like`."""
    return values.view(1, -1, *[1] * (like.dim() - 2))


def _wider(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
