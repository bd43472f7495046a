"""Lets torch believe in FAKE_GPUS GPUs, for tests of the GPU gate: they count, and compute on the CPU.

torch calls `install` at the end of its import: the gate's tests put an entry point "torch.backends" on the path.
"""

import functools
import os

import torch


def install() -> None:
    """Replace what the gate and pytest-ddp ask torch about GPUs."""
    count = int(os.environ["FAKE_GPUS"])
    torch.cuda.device_count = lambda: count
    torch.cuda.is_available = lambda: count > 0
    torch.cuda.get_device_name = lambda index: f"fake {index}"
    real = torch.ones

    @functools.wraps(real)
    def ones(*size, device=None, **options):
        place = torch.device(device or "cpu")
        if place.type == "cuda" and os.environ.get("FAKE_BROKEN"):
            raise RuntimeError("CUDA error: no kernel image is available for execution on the device")
        return real(*size, device=None if place.type == "cuda" else device, **options)

    torch.ones = ones
