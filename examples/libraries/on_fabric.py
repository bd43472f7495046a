"""Lightning Fabric: what `Fabric.setup` makes of a module and its optimizer, as an engine."""

from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import ClusterEnvironment
from lightning_fabric.strategies import DDPStrategy
from torch import Tensor, nn
from torch.optim import Optimizer


class _ThisGroup(ClusterEnvironment):
    """The default process group, which is there already; each rank stands for a node."""

    creates_processes_externally = True
    main_address = "127.0.0.1"
    main_port = 0

    @staticmethod
    def detect() -> bool:
        return True

    def world_size(self) -> int:
        return dist.get_world_size()

    def set_world_size(self, size: int) -> None:
        pass

    def global_rank(self) -> int:
        return dist.get_rank()

    def set_global_rank(self, rank: int) -> None:
        pass

    def local_rank(self) -> int:
        return 0

    def node_rank(self) -> int:
        return dist.get_rank()


def _fabric() -> Fabric:
    strategy = DDPStrategy(accelerator=None, parallel_devices=[torch.device("cpu")], cluster_environment=_ThisGroup())
    fabric = Fabric(accelerator="cpu", strategy=strategy, devices=1, num_nodes=dist.get_world_size())
    fabric.launch()
    return fabric


class Engine:
    """A module and an optimizer that Fabric has set up."""

    def __init__(self, module: nn.Module, optimizer_cls: type[Optimizer], **options: Any) -> None:
        self._fabric, self._module = _fabric(), module
        optimizer = optimizer_cls(module.parameters(), **options)
        self._wrapped, self._optimizer = self._fabric.setup(module, optimizer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward."""
        return self._wrapped(*args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        """Compute and average gradients."""
        self._fabric.backward(loss)

    def step(self) -> None:
        """Update the parameters, and clear the gradients."""
        self._optimizer.step()
        self._optimizer.zero_grad()

    def full_parameters(self) -> dict[str, Tensor]:
        """Every parameter, which all ranks have."""
        return dict(self._module.named_parameters())

    def train(self) -> None:
        """Set the module to training mode."""
        self._wrapped.train()

    def eval(self) -> None:
        """Set the module to evaluation mode."""
        self._wrapped.eval()
