"""DeepSpeed on CPUs: its engine with ZeRO stage 2, which shards gradients and the optimizer's state."""

import os
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("LOCAL_RANK", "0")

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.comm import comm
from deepspeed.utils import groups
from torch import Tensor, nn
from torch.optim import Optimizer

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first


def _forget_groups() -> None:
    """Let DeepSpeed take the process group that is there now: it keeps the first one of a process in globals."""
    comm.cdb = None
    for name, value in vars(groups).items():
        if isinstance(value, dist.ProcessGroup):
            setattr(groups, name, None)


class Engine:
    """DeepSpeed's engine; parameters stay whole on every rank in stage 2."""

    def __init__(self, module: nn.Module, optimizer_cls: type[Optimizer], **options: Any) -> None:
        _forget_groups()
        dtypes = {p.dtype for p in module.parameters()}
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "zero_optimization": {"stage": 2},
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": 0.0,  # it clips to a norm of 1 unless it is told not to
            "bf16": {"enabled": dtypes == {torch.bfloat16}},
        }
        optimizer = optimizer_cls(module.parameters(), **options)
        self._module = module
        self._engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward."""
        return self._engine(*args, **kwargs)

    def backward(self, loss: Tensor) -> None:
        """Compute and reduce gradients."""
        self._engine.backward(loss)

    def step(self) -> None:
        """Update the parameters, and clear the gradients."""
        self._engine.step()

    def full_parameters(self) -> dict[str, Tensor]:
        """Every parameter, which all ranks have."""
        return dict(self._module.named_parameters())

    def train(self) -> None:
        """Set the module to training mode."""
        self._engine.train()

    def eval(self) -> None:
        """Set the module to evaluation mode."""
        self._engine.eval()
