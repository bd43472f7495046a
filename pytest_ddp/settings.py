"""What the user set for the whole run: command line over environment over ini file over default."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

from pytest_ddp.errors import UsageError

DEVICES = ("cpu", "cuda", "auto")
BACKENDS = ("gloo", "nccl", "mpi", "ucc")
LEAKS = ("warn", "error", "off")


@dataclass(frozen=True)
class Settings:
    """The defaults of every distributed test, and what the whole run must fulfil.

    Attributes:
        world_size: world sizes; tests that name none run once per size.
        backend: torch.distributed backend; None goes by the device.
        device: "cpu", "cuda", or "auto" for CUDA where there are enough GPUs.
        timeout: seconds that each phase of a test may take.
        seed: what the random numbers of all tests derive from.
        leaks: what becomes of the report on what a test left behind.
        strict: whether a test that this machine cannot run fails instead of being skipped.
        require_cuda: GPUs without which the run does not start.
        min_executed: distributed tests that must have been executed, or the run fails.
    """

    world_size: tuple[int, ...] = (2,)
    backend: str | None = None
    device: str = "cpu"
    timeout: float = 60.0
    seed: int = 0
    leaks: str = "warn"
    strict: bool = False
    require_cuda: int = 0
    min_executed: int = 0

    @classmethod
    def read(cls, look_up: Callable[[str], tuple[str, str] | None]) -> "Settings":
        """Build from `look_up(name) -> (text, where it was set)`, None for what nobody set; raise UsageError."""
        given = {field.name: look_up(field.name) for field in fields(cls)}
        return cls(**{name: _parse(_PARSERS[name], *found) for name, found in given.items() if found is not None})


def _parse(parse: Callable[[str], Any], text: str, where: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None


def parse_world_sizes(text: str) -> tuple[int, ...]:
    """Parse "4" or "1,2,4"; raise ValueError that says what is wrong."""
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"expected a world size such as 2, or several such as 1,2,4; got {text!r}") from None
    for size in sizes:
        if size < 1:
            raise ValueError(f"a world has at least 1 rank; got {size}")
    return sizes


def _parse_timeout(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ValueError(f"expected a number of seconds above 0; got {text!r}")
    return seconds


def _parse_count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"expected a whole number from 0; got {text!r}")
    return int(text)


def _parse_flag(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError(f"expected true or false; got {text!r}")
    return words[text.lower()]


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}; got {text!r}")
        return text

    return parse


_PARSERS: dict[str, Callable[[str], Any]] = {
    "world_size": parse_world_sizes,
    "backend": _one_of(BACKENDS),
    "device": _one_of(DEVICES),
    "timeout": _parse_timeout,
    "seed": _parse_count,
    "leaks": _one_of(LEAKS),
    "strict": _parse_flag,
    "require_cuda": _parse_count,
    "min_executed": _parse_count,
}


# The command-line options, ini values and environment variables of the plugin.

_OPTIONS = {
    "world_size": "number of ranks of a distributed test that does not say; 1,2,4 runs it once per size (default: 2)",
    "backend": "torch.distributed backend: gloo, nccl, mpi or ucc (default: gloo on CPU, nccl on CUDA)",
    "device": "cpu, cuda, or auto for CUDA where there are enough GPUs (default: cpu)",
    "timeout": "seconds that each phase (setup, call, teardown) of a distributed test may take (default: 60)",
    "seed": "whole number that the random numbers of every distributed test derive from (default: 0)",
    "leaks": "report what a distributed test leaves behind (threads, ...): warn, error or off (default: warn)",
    "require_cuda": "refuse to start on a machine with fewer GPUs than this (default: 0)",
    "min_executed": "fail the run if fewer distributed tests than this were executed (default: 0)",
}
_STRICT = "fail distributed tests that this machine cannot run, instead of skipping them"


def add_options(parser: "pytest.Parser") -> None:
    """Declare `--ddp-...` options and `ddp_...` ini values."""
    group = parser.getgroup("ddp", "distributed tests (pytest-ddp)")
    for name, text in _OPTIONS.items():
        group.addoption(_flag(name), dest=f"ddp_{name}", default=None, metavar=name.upper(), help=text)
        parser.addini(f"ddp_{name}", help=text, default="")
    group.addoption("--ddp-strict", dest="ddp_strict", action="store_true", default=False, help=_STRICT)
    parser.addini("ddp_strict", help=_STRICT, default="")


def read_settings(config: "pytest.Config") -> Settings:
    """Return the settings.

    Raises:
        UsageError: for a value that cannot be, naming where it was set.
    """
    return Settings.read(partial(configured_value, config))


def configured_value(config: "pytest.Config", name: str) -> tuple[str, str] | None:
    """Return the value that a setting was given, and where, or None.

    The command line wins over the environment, the environment over the ini file.
    """
    variable = f"PYTEST_DDP_{name.upper()}"
    places = (
        (config.getoption(f"ddp_{name}"), _flag(name)),
        (os.environ.get(variable), variable),
        (config.getini(f"ddp_{name}"), f"ddp_{name} in the ini file"),
    )
    return next(((str(value), where) for value, where in places if value), None)


def _flag(name: str) -> str:
    return f"--ddp-{name.replace('_', '-')}"
