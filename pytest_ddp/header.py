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
    count = _gpu_count()
    return f"{count} GPU{'' if count == 1 else 's'}"


def _gpu_count() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in {"", "-1"}])
    return len(list(_NVIDIA.iterdir())) if _NVIDIA.is_dir() else 0


def _launcher(settings: Settings) -> str:
    """Say how ranks are started; what device a test of `device=auto` gets is known only when it is its turn."""
    if sys.platform != "linux" or settings.device == "cuda":
        return "in fresh interpreters"
    return "forked" if settings.device == "cpu" or not _gpu_count() else "forked, on GPUs in fresh interpreters"
