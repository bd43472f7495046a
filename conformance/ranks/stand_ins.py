"""Stand-ins for what a submission imports or calls and this machine lacks, so that the rest of it can be judged.

There are three kinds: for known optional packages that are not installed, for the version of the course's own package,
and for CUDA calls, since ranks run on CPUs. None replaces what is there, and the report lists those that were used.
"""

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Self

import torch

from conformance.submissions.location import Location

OPTIONAL_PACKAGES = frozenset({
    "accelerate", "datasets", "deepspeed", "einops", "einx", "fire", "flash_attn", "huggingface_hub", "humanfriendly",
    "hydra", "jaxtyping", "lightning", "line_profiler", "loguru", "matplotlib", "memory_profiler", "modal", "numba",
    "nvtx", "omegaconf", "pandas", "polars", "psutil", "pynvml", "pytorch_lightning", "regex", "rich", "scipy",
    "seaborn", "sentencepiece", "submitit", "swanlab", "tabulate", "tensorboard", "termcolor", "tiktoken",
    "torchvision", "tqdm", "transformers", "triton", "typer", "viztracer", "wandb", "xformers", "yaml",
})  # fmt: skip
used: set[str] = set()


class AbsentPackage:
    """Stands in wherever code uses a package and does not compute with it: attributes, decorators, base classes, types.

    What Python or torch say of any other use names this class.
    """

    def __init__(self, name: str, items: Any = None) -> None:
        vars(self).update(_name=name, _items=items)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"the AbsentPackage {self._name} has no {name}")
        return AbsentPackage(f"{self._name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the only argument if it can be called, as a decorator does; else a stub, which may iterate over it."""
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return AbsentPackage(self._name, args[0] if len(args) == 1 else None)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the only argument that was given, as a progress bar does."""
        if isinstance(self._items, Iterable) and not isinstance(self._items, str | torch.Tensor):
            return iter(self._items)
        raise TypeError(f"the AbsentPackage {self._name} has no items")

    def __getitem__(self, _: object) -> "AbsentPackage":
        return self

    def __or__(self, _: object) -> "AbsentPackage":
        return self

    __ror__ = __or__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __instancecheck__(self, _: object) -> bool:
        return False

    def __mro_entries__(self, _: object) -> tuple[type, ...]:
        return (object,)


class _StubModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return AbsentPackage(f"{self.__name__}.{name}")


class Packages(MetaPathFinder, Loader):
    """The last import finder: makes an empty package for each name that is allowed."""

    def __init__(self) -> None:
        self.allowed: set[str] = set()

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        """Find any module of an allowed package."""
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self.allowed else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the empty module."""
        return _StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing."""

    def allow(self, error: ImportError) -> bool:
        """Offer a stub for the package that an import lacked, if it is a known one; return whether one is offered."""
        package = (error.name or "").partition(".")[0]
        if not isinstance(error, ModuleNotFoundError) or package not in OPTIONAL_PACKAGES - self.allowed:
            return False
        if package in sys.modules:  # installed without this submodule: a stub must not mix with the real package
            return False
        self.offer(package)
        return True

    def offer(self, package: str) -> None:
        """Offer a stub for a package."""
        self.allowed.add(package)
        used.add(f"package {package}")


packages = Packages()


def install(location: Location) -> None:
    """Hide GPUs and prepare stand-ins in this process; do nothing the second time.

    GPUs are hidden because a machine may have fewer than there are ranks. torch looks for triton itself and remembers
    the answer, so it looks before there is a stub.
    """
    if packages in sys.meta_path:
        return
    from torch.utils._triton import has_triton_package  # noqa: PLC0415  a private module that few processes need

    has_triton_package()
    sys.meta_path.append(packages)
    _forgive_missing_metadata(location)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    sys.dont_write_bytecode = True  # a submission's folder is left as it is
    _silence_cuda()


def _forgive_missing_metadata(location: Location) -> None:
    """Let files of the submission read "0.0.0" as the version of a package that is not installed."""
    real = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return real(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            caller = sys._getframe(1).f_code.co_filename  # noqa: SLF001  only the submission's own calls are forgiven
            if not any(caller.startswith(root) for root in location.import_roots):
                raise
            used.add(f"version of {distribution_name}: 0.0.0")
            return "0.0.0"

    importlib.metadata.version = version


def _silence_cuda() -> None:
    """Let CUDA calls that mean nothing on a CPU do nothing."""
    calls = {
        torch.cuda: ("synchronize", "set_device", "current_stream", "default_stream", "stream"),
        torch.cuda.nvtx: ("range_push", "range_pop", "range_start", "range_end", "mark"),
    }
    for owner, names in calls.items():
        for name in names:
            setattr(owner, name, _no_op(f"{owner.__name__}.{name}"))
    for name in ("Event", "Stream"):
        setattr(torch.cuda, name, type(name, (_Nothing,), {"_name": f"torch.cuda.{name}"}))


class _Nothing:
    """What CUDA calls return here: a stream or an event, whose methods do nothing and measure 0 ms."""

    _name = ""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        if self._name:
            used.add(f"{self._name} does nothing on a CPU")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_args, **_kwargs: {"elapsed_time": 0.0, "query": True}.get(name)


def _no_op(name: str) -> Callable[..., _Nothing]:
    def call(*_args: Any, **_kwargs: Any) -> _Nothing:
        used.add(f"{name} does nothing on a CPU")
        return _Nothing()

    return call
