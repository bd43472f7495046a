"""An engine: one object that owns forward, backward and the optimizer's step, so that it may move work between them.

**Idea.** A wrapper sees forward and the gradients, a sharded optimizer sees the step; neither sees the whole training
step. An engine is given the loss and the moment of the step. It may therefore reduce each gradient to its owner alone,
keep parameters in another dtype, or leave gradients sharded, as DeepSpeed and Megatron-LM do. This one adds nothing to
its parts: it shows what the interface asks for.

`backward(loss)` adds this rank's gradients to those of earlier calls. `step()` averages them over the ranks, updates
the parameters, and clears the gradients. `full_parameters()` gives the whole parameters in between.

Source: Rasley et al., "DeepSpeed: System Optimizations Enable Training Deep Learning Models with Over 100 Billion
Parameters" (KDD 2020); `deepspeed.DeepSpeedEngine`.
"""

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from reference.ddp.flat import FlatDDP
from reference.zero1.sharded_optimizer import ShardedOptimizer


class Engine:
    """A module whose gradients are averaged, and whose optimizer's state is sharded, over all ranks.

    All parameters and buffers begin with rank 0's values. It is called as the module is.

    Args:
        module: the module to train; it is used, not copied.
        optimizer_cls: an optimizer class of torch that updates each parameter by itself.
        **options: its keyword arguments.
    """

    def __init__(self, module: nn.Module, optimizer_cls: type[Optimizer], **options: Any) -> None:
        self._bare, self._wrapped = module, FlatDDP(module)
        self._optimizer = ShardedOptimizer(module.parameters(), optimizer_cls, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward."""
        return self._wrapped(*args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of a loss, and add them to those since the last step. Communicates nothing."""
        loss.backward()  # type: ignore[no-untyped-call]  # torch's

    def step(self) -> None:
        """Update the parameters with the mean of all ranks' gradients, then clear these. Call on every rank."""
        self._wrapped.finish_gradient_synchronization()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def full_parameters(self) -> dict[str, Tensor]:
        """Every whole parameter, by its name in the module."""
        return dict(self._bare.named_parameters())

    def train(self, mode: bool = True) -> None:  # noqa: FBT001, FBT002  as nn.Module has it
        """Set the module to training mode, or to evaluation mode."""
        self._wrapped.train(mode)

    def eval(self) -> None:
        """Set the module to evaluation mode."""
        self.train(mode=False)
