"""What scenarios of training and cases of other components have in common. Nothing here imports torch."""

import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self

from conformance.scenarios.compact_repr import Brief


class Drawn(Brief):
    """What Hypothesis draws, ranks carry out, and a check judges: plain data that saves as JSON.

    Attributes:
        world_size: ranks.
        seed: selects the numbers.
        gated: results of collectives arrive only when the submission waits for them, and are NaN before.
        two_machines: the ranks seem to be on two machines, where `LOCAL_RANK` is not the rank.
    """

    kinds: ClassVar[dict[str, type["Drawn"]]] = {}
    world_size: int
    seed: int
    gated: bool
    two_machines: bool

    def __init_subclass__(cls) -> None:
        Drawn.kinds[cls.__name__] = cls

    @property
    def worlds(self) -> tuple[int, ...]:
        """The sizes of the worlds that carry it out, one after the other."""
        return (self.world_size,)

    @property
    def observed(self) -> bool:
        """Whether the collectives of the ranks are observed."""
        return self.gated

    @cached_property
    def text(self) -> str:
        """The JSON text, which nothing else that is drawn has."""
        return json.dumps(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return what `json.dumps` takes, and `drawn_from_json` reads."""
        return {"kind": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]  # subclasses are dataclasses

    @classmethod
    def from_fields(cls, plain: dict[str, Any]) -> Self:
        """Return what has these fields, of which lists were tuples before they went through JSON.

        Raises:
            KeyError, TypeError: these are not its fields.
        """
        return cls(**{name: tuples(value) for name, value in plain.items()})


def drawn_from_json(plain: dict[str, Any]) -> Drawn:
    """Return what `to_json` described, also after a trip through JSON text.

    The module of its class must have been imported. Raises KeyError or TypeError for other data.
    """
    return Drawn.kinds[plain["kind"]].from_fields({name: value for name, value in plain.items() if name != "kind"})


def tuples(value: Any) -> Any:
    """Return the value with each list, on any level of lists, as a tuple."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value


@dataclass(frozen=True, repr=False)
class Case(Drawn):
    """What every case has; `Drawn` describes the attributes."""

    world_size: int = 1
    seed: int = 0
    gated: bool = field(default=False, kw_only=True)
    two_machines: bool = field(default=False, kw_only=True)
