"""Automatic mixed precision: compute in 16 bits, keep parameters in 32, and skip steps on all ranks or none.

bfloat16 has float32's range, so gradients need no care. float16 has not: gradients below 6e-8 vanish. The loss is
scaled up before backward and gradients down after; where the scale was too large an inf or NaN appears, the step is
skipped and the scale halved. All of it must happen on every rank at once. Averaged gradients see to that by themselves:
one rank's inf makes the mean inf everywhere. Where ranks hold different gradients (sharded ones, or before averaging),
one rank would skip and the others step, and models and scales would part for good. So the ranks agree first.

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
    """A GradScaler with which an inf or NaN on one rank skips the step on all; `state_dict` is thus equal everywhere.

    Use it as torch's own, on every rank alike: `unscale_`, or `step` where that was not called, is a collective.
    """

    def _unscale_grads_(
        self,
        optimizer: Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,  # noqa: FBT001  # torch's
    ) -> dict[torch.device, Tensor]:
        """Divide this rank's gradients by the scale, and agree on whether all ranks' are finite.

        Both `unscale_` and the check for optimizers that unscale by themselves (fused ones) come through here. The
        answer is on the scale's device, which the backend can reach, also where gradients are elsewhere or missing.
        """
        found = super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        anywhere = torch.stack([found_inf, *(flag.to(found_inf.device) for flag in found.values())]).max()
        if dist.is_initialized():
            dist.all_reduce(anywhere, op=dist.ReduceOp.MAX)
        return {anywhere.device: anywhere}


def precision(amp: Amp, device: torch.device) -> tuple[autocast, GradScaler]:
    """What a training loop needs for one precision: a context for forward and loss, and a scaler for the rest.

    Args:
        amp: compute in bfloat16, float16, or the parameters' own dtype.
        device: this rank's.

    Returns:
        A context that can be entered again and again, and a scaler, enabled for float16 only, that is used in any case.

    Raises:
        ValueError: float16 on a CPU, where few operations have it.
    """
    if amp == "fp16" and device.type == "cpu":
        raise ValueError("amp='fp16' needs a GPU, and this rank trains on the CPU: use amp='bf16' there")
    context = autocast(device.type, dtype=_DTYPES.get(amp), enabled=amp != "off")
    return context, LockstepGradScaler(device.type, enabled=amp == "fp16")
