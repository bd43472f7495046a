"""Hugging Face accelerate: what `Accelerator.prepare` makes of a module and its optimizer, as an engine."""

import os
from typing import Any

import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.optim import Optimizer


def _accelerator() -> Accelerator:
    """Return an accelerator for the process group that is there: accelerate keeps the first one of a process."""
    AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001  as accelerate's own tests do
    rank, ranks = str(dist.get_rank()), str(dist.get_world_size())
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return Accelerator(cpu=True)


class Engine:
    """A module and an optimizer that accelerate has prepared."""

    def __init__(self, module: nn.Module, optimizer_cls: type[Optimizer], **options: Any) -> None:
        self._accelerator = _accelerator()
        optimizer = optimizer_cls(module.parameters(), **options)
        self._wrapped, self._optimizer = self._accelerator.prepare(module, optimizer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward."""
        return self._wrapped(*args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        """Compute and average gradients."""
        self._accelerator.backward(loss)

    def step(self) -> None:
        """Update the parameters, and clear the gradients."""
        self._optimizer.step()
        self._optimizer.zero_grad()

    def full_parameters(self) -> dict[str, Tensor]:
        """Every parameter, which all ranks have."""
        return dict(self._accelerator.unwrap_model(self._wrapped).named_parameters())

    def train(self) -> None:
        """Set the module to training mode."""
        self._wrapped.train()

    def eval(self) -> None:
        """Set the module to evaluation mode."""
        self._wrapped.eval()
