"""The `distributed` decorator."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from pytest_ddp.errors import UsageError
from pytest_ddp.request import Request

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def distributed(
    function: Decorated | None = None,
    /,
    *,
    world_size: int | Sequence[int] | None = None,
    backend: str | None = None,
    device: str | None = None,
    timeout: float | None = None,
    isolation: str = "warm",
) -> Any:
    """Run a test on every rank of a fresh process group.

    Args:
        function: the test, when written as bare `@distributed`.
        world_size: number of ranks; a list runs the test once per size. Default: `--ddp-world-size`.
        backend: "gloo", "nccl", "mpi" or "ucc". Default: `--ddp-backend`, else gloo on CPU and NCCL on CUDA.
        device: "cpu", "cuda", or "auto" for CUDA where there are enough GPUs. Default: `--ddp-device`.
        timeout: seconds that setup, call and teardown may each take. Default: `--ddp-timeout`.
        isolation: "warm" keeps the rank processes for the next test; "process" gives the test processes of its own.

    Raises:
        UsageError: for values that cannot be.
    """
    if function is not None and not callable(function):
        raise UsageError(f"@distributed takes keywords: write @distributed(world_size={function!r})")
    options = {
        "world_size": world_size,
        "backend": backend,
        "device": device,
        "timeout": timeout,
        "isolation": isolation,
    }
    Request.of(**options)  # type: ignore[arg-type]  # checked here so that the error points at the decorator
    mark = pytest.mark.distributed(**{name: value for name, value in options.items() if value is not None})
    return mark if function is None else mark(function)
