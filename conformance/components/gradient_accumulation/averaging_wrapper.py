"""A minimal data-parallel wrapper, on which gradient accumulation is checked."""

from contextlib import AbstractContextManager
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn


def unsymmetric_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error, weighted by the targets: swapped arguments give another loss."""
    return ((output - target).square() * (2 + torch.tanh(target))).mean()


class Replicated(nn.Module):
    """A module whose gradients are averaged over all ranks, except in backward passes under `no_sync`.

    Attributes:
        at: "backward": each backward pass outside `no_sync` averages. "forward": a backward pass averages if the last
            forward was outside `no_sync`, as in torch's DDP. "finish": a backward pass outside `no_sync` copies the
            gradients, and `finish_gradient_synchronization` averages them, as in wrappers that overlap communication.
        forwards, backwards, exchanges: how often each happened.
        most_alive: the largest number of forwards without their backward at one time.
    """

    def __init__(self, module: nn.Module, at: str) -> None:
        super().__init__()
        self.module, self.at = module, at
        self.start_over()
        self._synchronises, self._prepared = True, False
        self._sent: dict[torch.Tensor, torch.Tensor | None] = {}
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]  # torch's
        self._counted = next(module.parameters())

    def start_over(self) -> None:
        """Set all counters to zero."""
        self.forwards = self.backwards = self.exchanges = self.most_alive = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the module."""
        self.forwards += 1
        self.most_alive = max(self.most_alive, self.forwards - self.backwards)
        self._prepared = self._synchronises
        output: torch.Tensor = self.module(x)
        return output

    def no_sync(self) -> AbstractContextManager[object]:
        """Keep gradients local in backward passes inside this context."""
        return mock.patch.object(self, "_synchronises", new=False)

    def finish_gradient_synchronization(self) -> None:
        """Write the averages of the copied gradients to `.grad`."""
        for parameter, sent in self._sent.items():
            parameter.grad = sent
            self._average(parameter)
        self._sent.clear()

    def _accumulated(self, parameter: torch.Tensor) -> None:
        self.backwards += parameter is self._counted
        if not (self._prepared if self.at == "forward" else self._synchronises):
            return
        if self.at == "finish":
            self._sent[parameter] = None if parameter.grad is None else parameter.grad.clone()
        else:
            self._average(parameter)

    def _average(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.exchanges += parameter is self._counted
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
