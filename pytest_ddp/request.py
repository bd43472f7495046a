"""What one distributed test asks for, checked."""

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddp.errors import UsageError
from pytest_ddp.settings import BACKENDS, DEVICES

ISOLATIONS = ("warm", "process")


@dataclass(frozen=True)
class Request:
    """What one test asks for; None or () leaves the choice to the settings."""

    world_sizes: tuple[int, ...] = ()
    backend: str | None = None
    device: str | None = None
    timeout: float | None = None
    isolation: str = "warm"

    @classmethod
    def of(
        cls,
        world_size: int | Sequence[int] | None = None,
        *,
        backend: str | None = None,
        device: str | None = None,
        timeout: float | None = None,
        isolation: str = "warm",
    ) -> "Request":
        """Check what was written in the decorator; raise UsageError that says what to write instead."""
        _check_choice("backend", backend, BACKENDS)
        _check_choice("device", device, DEVICES)
        _check_choice("isolation", isolation, ISOLATIONS)
        if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
            raise UsageError(f"@distributed(timeout=...) takes seconds above 0; got {timeout!r}")
        return cls(_world_sizes(world_size), backend, device, timeout, isolation or "warm")


def _world_sizes(wanted: int | Sequence[int] | None) -> tuple[int, ...]:
    if wanted is None:
        return ()
    sizes = tuple(wanted) if isinstance(wanted, Sequence) else (wanted,)
    if not sizes or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in sizes):
        raise UsageError(
            f"@distributed(world_size=...) takes a number of ranks from 1, or a list of them; got {wanted!r}"
        )
    return sizes


def _check_choice(name: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise UsageError(f"@distributed({name}=...) takes one of {', '.join(choices)}; got {value!r}")
