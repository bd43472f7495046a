"""What the user set for the whole run: command line over environment over ini file over default."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pytest_ddp.errors import UsageError

DEVICES = ("cpu", "cuda", "auto")
BACKENDS = ("gloo", "nccl", "mpi", "ucc")
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """The defaults of every distributed test: world sizes (tests run once per size), backend, device, timeout in s."""

    world_sizes: tuple[int, ...] = (2,)
    backend: str | None = None
    device: str = "cpu"
    timeout: float = 60.0

    @classmethod
    def read(cls, look_up: Callable[[str], tuple[str, str] | None]) -> "Settings":
        """Build from `look_up(name) -> (text, where it was set)`, None for what nobody set; raise UsageError."""
        given = {name: look_up(name) for name in ("world_size", "backend", "device", "timeout")}
        defaults = cls()
        return cls(
            world_sizes=_parse(parse_world_sizes, given["world_size"], defaults.world_sizes),
            backend=_parse(_one_of(BACKENDS), given["backend"], defaults.backend),
            device=_parse(_one_of(DEVICES), given["device"], defaults.device),
            timeout=_parse(_parse_timeout, given["timeout"], defaults.timeout),
        )


def _parse(parse: Callable[[str], T], given: tuple[str, str] | None, default: T) -> T:
    if given is None:
        return default
    text, where = given
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


def _one_of(choices: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}; got {text!r}")
        return text

    return parse
