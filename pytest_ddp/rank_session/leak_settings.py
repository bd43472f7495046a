"""Settings of torch, numpy and the process that a test may leave changed."""

import os
import sys
from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing

from pytest_ddp.rank_session.leak_kind import Forgiven, Leak, LeakKind, setting
from pytest_ddp.torch_internals import dynamo_settings, print_options, restore_dynamo_settings

_AUTOCAST_DEVICES = ("cpu", "cuda")
_DENORMAL = 5e-324
_FLAGS = (
    *(f"backends.cudnn.{name}.fp32_precision" for name in ("conv", "rnn")),
    *(f"backends.cudnn.{name}" for name in ("enabled", "benchmark", "deterministic", "allow_tf32")),
    *(f"backends.cuda.matmul.allow_{dtype}_reduced_precision_reduction" for dtype in ("fp16", "bf16")),
    *("backends.mkldnn.enabled", "backends.opt_einsum.enabled"),
)
_ATTENTIONS = ("flash", "mem_efficient", "math", "cudnn")


class MatmulPrecision(NamedTuple):
    """The precision of float32 matrix products, by both of torch's interfaces; `old` is "" where only `new` is set."""

    old: str
    new: str

    @classmethod
    def read(cls) -> "MatmulPrecision":
        """Return what is set."""
        try:
            old = torch.get_float32_matmul_precision()
        except RuntimeError:  # torch does not translate what the new interface has set
            old = ""
        return cls(old, torch.backends.cuda.matmul.fp32_precision)

    def write(self) -> None:
        """Set it again."""
        torch.set_float32_matmul_precision(self.old or "highest")
        torch.backends.cuda.matmul.fp32_precision = self.new

    def __str__(self) -> str:
        return self.old or self.new


class Autocast(NamedTuple):
    """The state of autocast: whether it is on, and its dtype, for each of `_AUTOCAST_DEVICES`."""

    dtypes: tuple[tuple[bool, torch.dtype], ...]
    caches: bool
    nesting: int

    @classmethod
    def read(cls) -> "Autocast":
        """Return the state of this thread."""
        dtypes = tuple((torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCAST_DEVICES)
        torch.autocast_increment_nesting()
        return cls(dtypes, torch.is_autocast_cache_enabled(), torch.autocast_decrement_nesting())

    def write(self) -> None:
        """Set it again."""
        for device, (enabled, dtype) in zip(_AUTOCAST_DEVICES, self.dtypes, strict=True):
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self.caches)
        while Autocast.read().nesting > self.nesting:
            torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()

    def __str__(self) -> str:
        pairs = zip(_AUTOCAST_DEVICES, self.dtypes, strict=True)
        return ", ".join(f"{dtype} on {device}" for device, (enabled, dtype) in pairs if enabled) or "off"


def _flag(path: str) -> LeakKind:
    module, _, name = path.rpartition(".")
    owner = attrgetter(module)(torch)
    return setting(f"torch.{path}", partial(_read_flag, owner, name), partial(_write_flag, owner, name))


def _read_flag(owner: Any, name: str) -> object:
    try:
        return getattr(owner, name)
    except RuntimeError:  # newer flags contradict it
        return None


def _write_flag(owner: Any, name: str, value: object) -> None:
    if value is not None:
        setattr(owner, name, value)


def _attention(name: str) -> LeakKind:
    cuda = torch.backends.cuda
    return setting(f"{name} attention", getattr(cuda, f"{name}_sdp_enabled"), getattr(cuda, f"enable_{name}_sdp"))


def _flushes_denormals() -> bool:
    return _DENORMAL * 1.0 == 0.0  # the processor's flag is for all code of this thread


def _default_device() -> torch.device:
    return torch.empty(0).device  # as torch.get_default_device(), but faster


def _set_default_device(device: torch.device) -> None:
    # None is the CPU too. With any device, torch intercepts every call of its functions, which takes time.
    torch.set_default_device(None if device.type == "cpu" else device)


def _restore_dynamo(before: bytes | None, forgiven: Forgiven) -> Iterator[Leak]:
    name = "torch._dynamo.config"
    if before is not None and dynamo_settings() != before and not forgiven(name):
        yield Leak(f"{name} changed: {', '.join(restore_dynamo_settings(before))}", name)


def _set_print_options(options: dict[str, Any]) -> None:
    vars(print_options()).update(options)


def _numpy_errors() -> dict[str, str] | None:
    numpy = sys.modules.get("numpy")
    return numpy.geterr() if numpy else None


def _set_numpy_errors(before: dict[str, str] | None) -> None:
    if before is not None:
        sys.modules["numpy"].seterr(**before)


def _working_directory() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109  compared as text
    except FileNotFoundError:
        return None


SETTINGS = (
    setting("default dtype", torch.get_default_dtype, torch.set_default_dtype),
    setting("default device", _default_device, _set_default_device),
    setting("float32 matmul precision", MatmulPrecision.read, MatmulPrecision.write),
    setting("anomaly detection", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    setting("number of threads", torch.get_num_threads, torch.set_num_threads),
    setting("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    setting("deterministic algorithms", torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    setting("autocast", Autocast.read, Autocast.write),
    setting("flushing of denormal numbers", _flushes_denormals, torch.set_flush_denormal),
    *map(_flag, _FLAGS),
    *map(_attention, _ATTENTIONS),
    LeakKind(dynamo_settings, _restore_dynamo),
    setting("debug level of torch.distributed", dist.get_debug_level, dist.set_debug_level),
    setting("sharing strategy", torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy),
    setting("print options of torch", lambda: dict(vars(print_options())), _set_print_options),
    setting("error state of numpy", _numpy_errors, _set_numpy_errors),
    setting("working directory", _working_directory, os.chdir),
)
