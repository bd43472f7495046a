"""The header line of a run, made without importing torch: many runs will not need it."""

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pytest_ddp.settings import Settings

_NVIDIA = Path("/proc/driver/nvidia/gpus")


def header(settings: Settings) -> str:
    """Return the defaults of distributed tests, the version of torch, the devices, and how ranks are started."""
    sizes = ",".join(map(str, settings.world_size))
    backend = settings.backend or "gloo on cpu, nccl on cuda"
    return (
        f"ddp: world size {sizes}, device {settings.device}, backend {backend}; torch {_torch()}, "
        f"{_cores()} cores, {_gpus()}; ranks {_launcher(settings)}; seed {settings.seed}"
    )


def _torch() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return "not installed"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        count = len([device for device in visible.split(",") if device.strip() not in {"", "-1"}])
    else:
        count = len(list(_NVIDIA.iterdir())) if _NVIDIA.is_dir() else 0
    return f"{count} GPU{'' if count == 1 else 's'}"


def _launcher(settings: Settings) -> str:
    return "forked" if sys.platform == "linux" and settings.device != "cuda" else "in fresh interpreters"
