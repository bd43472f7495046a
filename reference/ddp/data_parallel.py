"""What every data-parallel wrapper is, whatever its exchange of gradients: one of W equal copies of a module.

Equal parameters, moved by equal gradients and equal optimizers, stay equal; so all that a wrapper owes its module
besides averaged gradients is to start equal, to keep buffers equal, and otherwise to stay out of sight.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), sections 3.1,
3.2.4 (no_sync) and 4.1 (buffers); `torch.nn.parallel.DistributedDataParallel`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from reference.collectives import broadcast


class Replica(nn.Module, ABC):
    """A module that is trained alike on all ranks.

    At construction every parameter and buffer becomes rank 0's; before each training forward the buffers do again.
    `state_dict` and `load_state_dict` are the module's own, so checkpoints fit the bare module and come from it.

    Args:
        module: the module to train; it is used, not copied.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._synchronizes = True
        broadcast([*module.parameters(), *module.buffers()], source=0)

    @abstractmethod
    def finish_gradient_synchronization(self) -> None:
        """Replace every gradient by its mean over all ranks. Call on every rank, after backward."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward; rank 0's buffers first when training."""
        if self._synchronizes and self.training and torch.is_grad_enabled():
            broadcast(self.module.buffers(), source=0)
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Communicate nothing in here: gradients add up on each rank, and the next backward outside sends the sum.

        Put forward and backward inside: buffers stay local in a forward, gradients in a backward. It may be nested.
        """
        before, self._synchronizes = self._synchronizes, False
        try:
            yield
        finally:
            self._synchronizes = before

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]  # torch overloads it
        """The bare module's state, under the bare module's names."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:  # noqa: FBT001, FBT002  # torch's signature
        """Take over the state of a bare module. Load the same on every rank."""
        return self.module.load_state_dict(state_dict, strict=strict, assign=assign)

    def __getstate__(self) -> dict[str, Any]:
        """What a copy begins with, by pickle or deepcopy: outside of any `no_sync`."""
        return {**self.__dict__, "_synchronizes": True}
