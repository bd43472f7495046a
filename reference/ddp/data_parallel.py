"""What all data-parallel wrappers share, except how they average gradients.

Every rank holds a copy of the module. Copies that start equal, and get equal gradients and equal optimizers, stay
equal. So besides averaging gradients, a wrapper makes the copies equal at the start, keeps their buffers equal, and
otherwise behaves as the module that it wraps.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training" (VLDB 2020), sections 3.1,
3.2.4 (no_sync) and 4.1 (buffers); `torch.nn.parallel.DistributedDataParallel`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from reference.collectives import broadcast


class DataParallelModule(nn.Module, ABC):
    """A module that is trained with equal parameters on all ranks.

    The constructor overwrites every parameter and buffer by rank 0's; each training forward does so with the buffers.
    `state_dict` and `load_state_dict` are the module's own, so a checkpoint fits the wrapped and the bare module.

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
        """The module's own forward. In training, it first overwrites the buffers by rank 0's."""
        if self._synchronizes and self.training and torch.is_grad_enabled():
            broadcast(self.module.buffers(), source=0)
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Communicate nothing inside: each rank adds up its gradients, and the next backward outside sends the sums.

        Put forward and backward inside: a forward would send buffers, a backward gradients. It may be nested.
        """
        before, self._synchronizes = self._synchronizes, False
        try:
            yield
        finally:
            self._synchronizes = before

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]  # torch overloads it
        """The bare module's state, with the bare module's names."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:  # noqa: FBT001, FBT002  # torch's signature
        """Load the state of a bare module. Load the same state on every rank."""
        return self.module.load_state_dict(state_dict, strict=strict, assign=assign)

    def _trainable(self) -> list[Tensor]:
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def __getstate__(self) -> dict[str, Any]:
        """The state of a copy, made by pickle or deepcopy: a copy is outside of any `no_sync`."""
        return {**self.__dict__, "_synchronizes": True}
