"""Automatic mixed precision: compute in 16 bits, keep parameters in 32, and skip steps on all ranks or none.

bfloat16 has the range of float32. float16 does not: gradients below 6e-8 become zero. So with float16, the loss is
multiplied by a scale before backward, and the gradients are divided by it afterwards. If the scale was too large, a
gradient is inf or NaN; then the step is skipped and the scale is halved.

All ranks must skip the same steps. Averaged gradients ensure this: an inf on one rank makes the mean inf on every rank.
But if ranks hold different gradients (sharded gradients, or gradients before averaging), one rank would skip the step
while the others take it, and from then on their models and scales would differ. So here the ranks agree first.

Source: Micikevicius et al., "Mixed Precision Training" (ICLR 2018), section 3.2; `torch.amp.GradScaler`;
`torch.distributed.fsdp.sharded_grad_scaler`.
"""

from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.amp import GradScaler, autocast
from torch.optim import Optimizer

Amp = Literal["off", "bf16", "fp16"]
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class LockstepGradScaler(GradScaler):
    """A GradScaler that skips the step on all ranks if one rank has an inf or NaN. All ranks have the same scale.

    Use it as torch's own, on every rank: `unscale_` is a collective, and so is `step` if `unscale_` was not called.
    """

    def _unscale_grads_(
        self,
        optimizer: Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,  # noqa: FBT001  # torch's
    ) -> dict[torch.device, Tensor]:
        """Divide this rank's gradients by the scale, and agree whether the gradients of all ranks are finite.

        torch calls it from `unscale_`, and for optimizers that unscale by themselves (fused ones). The result is on the
        scale's device, because the backend can send from there, even if the gradients are elsewhere or missing.
        """
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        anywhere = torch.stack([found_inf, *(flag.to(found_inf.device) for flag in found.values())]).max()
        if dist.is_initialized():
            dist.all_reduce(anywhere, op=dist.ReduceOp.MAX)
        return {anywhere.device: anywhere}


def precision(amp: Amp, device: torch.device) -> tuple[autocast, GradScaler]:
    """The context and the scaler that a training loop needs for one precision.

    Args:
        amp: compute in bfloat16, float16, or the parameters' own dtype.
        device: this rank's device.

    Returns:
        A context for forward and loss, which can be entered many times, and a scaler for backward and step. Use the
        scaler in any case: it does nothing unless `amp` is float16.

    Raises:
        ValueError: float16 on a CPU, where few operations support it.
    """
    if amp == "fp16" and device.type == "cpu":
        raise ValueError("amp='fp16' needs a GPU, but this rank trains on the CPU: use amp='bf16' instead")
    context = autocast(device.type, dtype=_DTYPES.get(amp), enabled=amp != "off")
    return context, LockstepGradScaler(device.type, enabled=amp == "fp16")
