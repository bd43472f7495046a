"""The request of one distributed test: the checked options of all its `@distributed` decorators."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ddp.errors import UsageError
from pytest_ddp.schedule_text import parse_schedule
from pytest_ddp.settings import BACKENDS, DEVICES

ISOLATIONS = ("warm", "process")
REDUCTIONS = ("rank_order", "ring", "tree")
_OPTIONS = (
    "world_size",
    "backend",
    "device",
    "timeout",
    "isolation",
    "observe",
    "group",
    "nodes",
    "schedule",
    "faults",
    "reduction",
)


@dataclass(frozen=True)
class Request:
    """What one test asks for; None or () leaves the choice to the settings.

    Attributes:
        schedule: of simulated ranks: choices, or a strategy of Hypothesis that draws them.
        faults: of simulated ranks: a plan of what happens to their operations; or a strategy that draws one.
        reduction: of simulated ranks: the order in which reductions add.
    """

    world_sizes: tuple[int, ...] = ()
    backend: str | None = None
    device: str | None = None
    timeout: float | None = None
    isolation: str = "warm"
    observe: bool | None = None
    group: bool | None = None
    nodes: int | None = None
    schedule: Any = None
    faults: Any = None
    reduction: str | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for an invalid value; its message says what is valid."""
        _check_choice("backend", self.backend, BACKENDS)
        _check_choice("device", self.device, DEVICES)
        _check_choice("isolation", self.isolation, ISOLATIONS)
        _check_choice("reduction", self.reduction, REDUCTIONS)
        is_number = isinstance(self.timeout, int | float) and not isinstance(self.timeout, bool)
        if self.timeout is not None and not (is_number and self.timeout > 0):
            raise UsageError(f"@distributed(timeout=...) takes seconds above 0; got {self.timeout!r}")
        is_count = isinstance(self.nodes, int) and not isinstance(self.nodes, bool) and self.nodes >= 1
        if self.nodes is not None and not is_count:
            raise UsageError(f"@distributed(nodes=...) takes an integer from 1; got {self.nodes!r}")
        for name in ("observe", "group"):
            if not isinstance(getattr(self, name), bool | None):
                raise UsageError(f"@distributed({name}=...) takes True or False; got {getattr(self, name)!r}")

    @classmethod
    def of(
        cls, world_size: int | Sequence[int] | None = None, *, isolation: str | None = None, **options: Any
    ) -> "Request":
        """Return the request of one decorator with these options; raise UsageError for a value that is not valid."""
        schedule, faults = _schedule(options.pop("schedule", None)), options.pop("faults", None)
        if faults is not None and not draws(faults):
            faults = tuple(faults) if isinstance(faults, Sequence) else (faults,)
        return cls(_world_sizes(world_size), isolation=isolation or "warm", schedule=schedule, faults=faults, **options)

    @classmethod
    def combined(cls, decorators: Iterable[Mapping[str, Any]]) -> "Request":
        """Combine the options of several decorators, nearest to the test first: the nearest value of an option wins."""
        nearest: dict[str, Any] = {}
        for options in decorators:
            nearest = {**{name: value for name, value in options.items() if value is not None}, **nearest}
        return cls.of(**nearest)


def mark_options(args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of one mark `distributed(...)` by name; raise UsageError for an option that does not exist."""
    unknown = [name for name in keywords if name not in _OPTIONS]
    if unknown or len(args) > 1 or (args and "world_size" in keywords):
        text = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in keywords.items())])
        raise UsageError(f"distributed takes the keywords {', '.join(_OPTIONS)}; got distributed({text})")
    return {**({"world_size": args[0]} if args else {}), **keywords}


def _world_sizes(wanted: int | Sequence[int] | None) -> tuple[int, ...]:
    if wanted is None:
        return ()
    sizes = tuple(wanted) if isinstance(wanted, Sequence) else (wanted,)
    if not sizes or not all(isinstance(size, int) and not isinstance(size, bool) and size >= 1 for size in sizes):
        raise UsageError(f"@distributed(world_size=...) takes an integer from 1, or a list of them; got {wanted!r}")
    return sizes


def draws(value: object) -> bool:
    """Whether the value of an option is a strategy of Hypothesis, which this module does not import."""
    return hasattr(value, "example")


def _schedule(wanted: Any) -> Any:
    """Return choices as a tuple, and a strategy as it is."""
    try:
        choices = parse_schedule(wanted) if isinstance(wanted, str) else wanted
    except ValueError as error:
        raise UsageError(f"@distributed(schedule=...): {error}") from None
    if choices is None or draws(choices):
        return choices
    if not isinstance(choices, Sequence) or not all(isinstance(one, int) and one >= 0 for one in choices):
        raise UsageError(
            "@distributed(schedule=...) takes a strategy such as pytest_ddp.strategies.schedules(), a list of choices "
            f'or a text such as "12:1,16:2"; got {wanted!r}'
        )
    return tuple(choices)


def _check_choice(name: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise UsageError(f"@distributed({name}=...) takes one of {', '.join(choices)}; got {value!r}")
