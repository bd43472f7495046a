"""fairscale's OSS, and ShardedDataParallel with OSS as an engine: a gradient reaches its owner alone."""

from collections.abc import Iterable
from typing import Any

from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim import OSS
from torch import Tensor, nn
from torch.optim import Optimizer


def sharded(params: Iterable[Tensor], optimizer_cls: type[Optimizer], **options: Any) -> Optimizer:
    """Return fairscale's optimizer with sharded state."""
    return OSS(params, optim=optimizer_cls, **options)


class Engine:
    """ShardedDataParallel and OSS, which only work together."""

    def __init__(self, module: nn.Module, optimizer_cls: type[Optimizer], **options: Any) -> None:
        self._module = module
        self._optimizer = OSS(module.parameters(), optim=optimizer_cls, **options)
        self._wrapped = ShardedDataParallel(module, self._optimizer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward."""
        return self._wrapped(*args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        """Compute gradients, and reduce each to its owner."""
        loss.backward()

    def step(self) -> None:
        """Update the parameters, and clear the gradients."""
        self._optimizer.step()
        self._wrapped.zero_grad()

    def full_parameters(self) -> dict[str, Tensor]:
        """Every parameter, which all ranks have."""
        return dict(self._module.named_parameters())

    def train(self) -> None:
        """Set the module to training mode."""
        self._wrapped.train()

    def eval(self) -> None:
        """Set the module to evaluation mode."""
        self._wrapped.eval()
