"""Batch normalization over the batches of all ranks, as if they were one.

If each rank normalizes by the mean and variance of its own part of the batch, the ranks train another model than one
process would: the statistics are noisier, and the running averages of the ranks differ. Here mean and variance are
those of the whole batch. The gradient is that of the whole batch, too: each sample changes the statistics with which
every rank normalizes, so the gradient of a sample has a part from every rank's loss.

Forward: the ranks gather their counts, means and variances, and combine them without cancellation (Chan et al.).
Backward: let y = x' w + b and x' = (x - mean) / std, over the n values per channel of all ranks, and let g be the
gradient of y. Then

    grad x = w / std * (g - sum(g) / n - x' sum(g x') / n),

where both sums are over all ranks. The gradients of w and b are this rank's own: a data-parallel wrapper averages them
with the others. Forward and backward each have one collective. Every rank takes part, also with an empty batch.

Source: Ioffe, Szegedy, "Batch Normalization" (2015), section 3; Chan, Golub, LeVeque, "Updating Formulae and a Pairwise
Algorithm for Computing Sample Variances" (1979); `torch.nn.SyncBatchNorm`, which runs on GPUs only.
"""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

_CONVERTED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class SyncBatchNorm(_BatchNorm):
    """Batch normalization over the batches of all ranks in training mode, and ordinary batch norm in eval mode.

    In training mode, forward and backward are collectives. In eval mode, ranks do not communicate, because they may
    evaluate different numbers of batches. So a layer without running statistics then normalizes each rank's batch by
    that batch's own statistics.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalize `x` of shape (batch, channels, ...); call on every rank, with any batch sizes.

        Raises:
            ValueError: the input has no channels, or all ranks together have fewer than two values per channel.
        """
        if not self.training or not _is_one_of_several_ranks():
            return super().forward(x)
        self._check_input_dim(x)
        count, mean, variance = _statistics_of_all_ranks(x.detach())
        if self.running_mean is not None:
            self._track(mean, variance * (count / (count - 1)))
        return _Normalize.apply(x, self.weight, self.bias, mean, variance, count, self.eps)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None, "checked by the caller"  # noqa: S101
        assert self.running_var is not None, "a layer has all three buffers or none"  # noqa: S101
        assert self.num_batches_tracked is not None, "a layer has all three buffers or none"  # noqa: S101
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002  # torch's name
        """Accept any number of dimensions; the second one is the channels."""
        if input.dim() < 2:  # noqa: PLR2004  # batch and channels
            raise ValueError(
                f"SyncBatchNorm got a tensor of shape {tuple(input.shape)}; expected (batch, channels, ...)"
            )


def convert_sync_batchnorm(module: nn.Module) -> nn.Module:
    """Make every batch norm layer in the module, or the module itself, normalize over all ranks. Changes it in place.

    Layers stay the same objects, with their parameters, buffers, hooks and names. Convert before wrapping.

    Raises:
        TypeError: a layer's class is derived from batch norm; its own code would be lost.
    """
    for name, layer in module.named_modules():
        if type(layer) in _CONVERTED:
            layer.__class__ = SyncBatchNorm
        elif isinstance(layer, _BatchNorm) and type(layer) is not SyncBatchNorm:
            raise TypeError(
                f"{name or 'the module'} is a {type(layer).__name__}. convert_sync_batchnorm can replace only "
                f"{', '.join(known.__name__ for known in _CONVERTED)}. Initialize a lazy layer first; use one of these "
                "classes instead of your own."
            )
    return module


class _Normalize(torch.autograd.Function):
    """Normalize by given statistics; backward takes into account that they depend on the inputs of all ranks."""

    @staticmethod
    def forward(  # noqa: PLR0917  # autograd passes no keywords
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mean: Tensor,
        variance: Tensor,
        count: Tensor,
        eps: float,
    ) -> Tensor:
        # Saves x, perhaps in half precision; backward computes the normalized values again.
        ctx.save_for_backward(x, weight, bias, mean, torch.rsqrt(variance + eps), count)
        wide_weight, wide_bias = (None if part is None else part.to(mean.dtype) for part in (weight, bias))
        return batch_norm(x, mean, variance, wide_weight, wide_bias, training=False, eps=eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "SyncBatchNorm has no second derivatives, but its backward was called with create_graph=True, as for "
                "gradient penalties and Hessians. Put this layer into eval mode for that."
            )
        x, weight, bias, mean, scale, count = ctx.saved_tensors
        gradient = gradients[0].to(mean.dtype)
        normalized = (x.to(mean.dtype) - _per_channel(mean, x)) * _per_channel(scale, x)
        of_bias, of_weight = _sum(gradient), _sum(gradient * normalized)
        sums = torch.stack([of_bias, of_weight])
        dist.all_reduce(sums)
        mean_gradient, mean_product = (_per_channel(part, x) for part in sums / count)
        scale = scale if weight is None else scale * weight
        of_x = (gradient - mean_gradient - normalized * mean_product) * _per_channel(scale, x)
        own = [None if p is None else g.to(p.dtype) for p, g in ((weight, of_weight), (bias, of_bias))]
        return of_x.to(x.dtype), *own, None, None, None, None


def _statistics_of_all_ranks(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The number of values per channel on all ranks, shape (1,), and their mean and biased variance, shape (channels,).

    Raises:
        ValueError: fewer than two values per channel.
    """
    mine, own_count = _statistics(x)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    gathered = torch.stack(parts)
    counts, means, variances = gathered[:, :1], *gathered[:, 1:].chunk(2, dim=1)
    count = counts.sum(0)
    # Reading a number makes the host wait for the GPU. A rank that has two values itself does not need to read it.
    if own_count < 2 and count.item() < 2:  # noqa: PLR2004
        raise ValueError(
            f"SyncBatchNorm got {int(count)} value per channel on all ranks together (this rank: shape "
            f"{tuple(x.shape)}); a variance needs at least 2. Use larger batches, or eval mode."
        )
    mean = (counts * means).sum(0) / count
    return count, mean, (counts * (variances + (means - mean).square())).sum(0) / count


def _statistics(x: Tensor) -> tuple[Tensor, int]:
    """This rank's count, means and variances, shape (1 + 2 channels,), or zeros if it has no values; and the count."""
    count, channels = len(x) * math.prod(x.shape[2:]), x.shape[1]
    mine = torch.zeros(1 + 2 * channels, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    if count:
        variance, mean = torch.var_mean(x.to(mine.dtype), _all_but_channels(x), correction=0)
        mine[0], mine[1 : 1 + channels], mine[1 + channels :] = count, mean, variance
    return mine, count


def _is_one_of_several_ranks() -> bool:
    return dist.is_initialized() and dist.get_world_size() > 1


def _sum(x: Tensor) -> Tensor:
    return x.sum(_all_but_channels(x))


def _all_but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    """A view of (channels,) that broadcasts along the channels of `like`."""
    return values.view(1, -1, *[1] * (like.dim() - 2))
