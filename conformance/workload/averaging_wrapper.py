"""The plainest data-parallel wrapper: what gradient accumulation is tried on, on ranks and in scripts."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


def unsymmetric_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean of squared errors, weighted by the targets, so that swapped arguments give another loss."""
    return ((output - target).square() * (2 + torch.tanh(target))).mean()


class Replicated(nn.Module):
    """A module whose gradients are averaged over all ranks: all once, however many backwards are left out by `no_sync`.

    Where `at` is "backward", during each backward outside `no_sync`. Where it is "forward", the wrapper's last forward
    decides whether the backward after it averages, as in torch's own. Where it is "finish", such a backward sends what
    it gives, and only `finish_gradient_synchronization` puts the averages in place, as in wrappers that communicate
    meanwhile.
    """

    def __init__(self, module: nn.Module, at: str) -> None:
        super().__init__()
        self.module = module
        self.at = at
        self.forwards = self.backwards = self.exchanges = self.most_alive = 0
        self._synchronises, self._prepared = True, False
        self._sent: dict[torch.Tensor, torch.Tensor | None] = {}
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]  # torch's
        self._counted = next(module.parameters())

    def start_over(self) -> None:
        """Count anew: forwards, backwards, exchanges, and how many forwards had no backward yet at most."""
        self.forwards = self.backwards = self.exchanges = self.most_alive = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the module."""
        self.forwards += 1
        self.most_alive = max(self.most_alive, self.forwards - self.backwards)
        self._prepared = self._synchronises
        output: torch.Tensor = self.module(x)
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Leave gradients as they are in what runs within."""
        before, self._synchronises = self._synchronises, False
        try:
            yield
        finally:
            self._synchronises = before

    def finish_gradient_synchronization(self) -> None:
        """Put the averages of what was sent in place."""
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
