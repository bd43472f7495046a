"""What scenarios of training and cases of other components have in common. Nothing here imports torch."""

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from conformance.scenarios.plain_data import PlainData, from_json


class Drawn(PlainData):
    """What Hypothesis draws, ranks carry out, and a check judges: plain data that saves as JSON.

    Attributes:
        world_size: ranks.
        seed: selects the numbers.
        gated: results of collectives arrive only when the submission waits for them, and are NaN before.
        two_machines: the ranks seem to be on two machines, where `LOCAL_RANK` is not the rank.
    """

    world_size: int
    seed: int
    gated: bool
    two_machines: bool

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


def drawn_from_json(plain: dict[str, Any]) -> Drawn:
    """Return what `to_json` described; raise KeyError or TypeError for other data."""
    drawn = from_json(plain)
    if not isinstance(drawn, Drawn):
        raise TypeError(f"expected a scenario or a case, not {plain!r:.80}")
    return drawn


@dataclass(frozen=True, repr=False)
class Case(Drawn):
    """What every case has; `Drawn` describes the attributes."""

    world_size: int = 1
    seed: int = 0
    gated: bool = field(default=False, kw_only=True)
    two_machines: bool = field(default=False, kw_only=True)
