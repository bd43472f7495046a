"""Fully sharded training beside training in one process: parts of all ranks are put together and compared."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from reference_wrappers import Wrapper
from side_by_side import SideBySide, assert_close, sgd
from torch import Tensor, nn
from torch.optim import Optimizer

from reference import adapters

FSDP = Wrapper(adapters.get_fsdp, adapters.fsdp_on_after_backward)


class Sharded(SideBySide):
    """`SideBySide` for FSDP, whose parameters are 1-d parts where the twin's have two or more dimensions."""

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        make_optimizer: Callable[[nn.Module], Optimizer] = sgd,
        *,
        tolerance: float | None = None,
    ) -> None:
        super().__init__(make_model, make_optimizer, wrapper=FSDP)
        self.within = tolerance

    @property
    def tolerance(self) -> float:
        return super().tolerance if self.within is None else self.within

    def assert_gradients_equal(self) -> None:
        for name, mine, twins in self.pairs():
            gradient = whole(mine.grad, twins)
            assert (gradient is None) == (twins.grad is None), name
            if gradient is not None:
                assert_close(gradient, twins.grad, self.tolerance, f"gradient of {name}")

    def assert_parameters_equal(self) -> None:
        for name, mine, twins in self.pairs():
            assert_close(whole(mine.detach(), twins), twins.detach(), self.tolerance, name)

    def pairs(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        for (name, mine), twins in zip(self.module.named_parameters(), self.twin.parameters(), strict=True):
            yield name, mine, twins


def whole(part: Tensor | None, like: Tensor) -> Tensor | None:
    """What the ranks' parts of a tensor make together; of one that every rank has, rank 0's, if all are equal."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, part)
    assert len({one is None for one in parts}) == 1, "some ranks have a gradient, others none"
    if part is None:
        return None
    if like.dim() < 2:
        assert all(torch.equal(one, parts[0]) for one in parts)
        return parts[0]
    return torch.cat(parts).view(like.shape)
