"""The plainest data-parallel wrapper: what gradient accumulation is tried on, on ranks and in scripts."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


class Replicated(nn.Module):
    """A module whose gradients are averaged over all ranks during backward, each as soon as it is complete.

    Outside `no_sync`, nothing is left to do after backward; `finish_gradient_synchronization` is there for those who
    call it.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.forwards = 0
        self.exchanges = 0
        self._synchronises = True
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(self._average)  # type: ignore[no-untyped-call]  # torch's
        self._counted = next(module.parameters())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the module."""
        self.forwards += 1
        output: torch.Tensor = self.module(x)
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave gradients as they are in backwards within."""
        before, self._synchronises = self._synchronises, False
        try:
            yield
        finally:
            self._synchronises = before

    def finish_gradient_synchronization(self) -> None:
        """Have all gradients averaged: they are."""

    def _average(self, parameter: torch.Tensor) -> None:
        if self._synchronises and parameter.grad is not None:
            self.exchanges += parameter is self._counted
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
