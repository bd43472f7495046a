"""What comes of a scenario or a case on ranks: the answers of all of them, or how they broke."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from conformance.protocol.messages import Answer
from pytest_ddp.errors import PytestDDPError
from pytest_ddp.outcomes.failure import root_cause
from pytest_ddp.outcomes.outcome import Outcome, Raised, TimedOut

_DECODED = 24  # a check that fails is judged again and again on a few


class HarnessError(PytestDDPError):
    """Something of ours failed: never the submission's loss."""


@dataclass(frozen=True)
class Observed:
    """A run that came to its end.

    Attributes:
        seed: what the numbers that the ranks were given are drawn from.
        kind: what each rank answered.
        sent: by world, then by rank, the answer as it came: a hundred small tensors take twenty times as much memory.
    """

    seed: int
    kind: type[Answer]
    sent: tuple[tuple[bytes, ...], ...]

    @property
    def size(self) -> int:
        """How many bytes the answers have."""
        return sum(len(answer) for world in self.sent for answer in world)

    @property
    def answers(self) -> list[list[Answer]]:
        """By world, then by rank, what each answered; raises MalformedError."""
        return [[decoded(self.kind.decode, answer) for answer in world] for world in self.sent]


@dataclass(frozen=True)
class Broken:
    """A run in which a rank raised, died or hung."""

    outcomes: tuple[Outcome, ...]
    size = 0

    @property
    def root(self) -> Outcome:
        """The outcome that caused the others."""
        return root_cause(self.outcomes)

    @property
    def hung(self) -> bool:
        """Whether ranks had to be ended at their deadline."""
        return isinstance(self.root, TimedOut)

    @property
    def refusal(self) -> str:
        """What the submission said when it raised on purpose; empty if it did not."""
        body = self.root.body if isinstance(self.root, Raised) else b""
        refused = isinstance(self.root, Raised) and bool(body) and json.loads(body)["refused"]
        return f"{self.root.kind}: {self.root.message}" if isinstance(self.root, Raised) and refused else ""

    @property
    def place(self) -> tuple[str, int | None] | None:
        """The stage and the step in which the submission raised, if it raised."""
        body = self.root.body if isinstance(self.root, Raised) else b""
        where = json.loads(body) if body else None
        return (where["stage"], where["step"]) if where else None


@dataclass(frozen=True)
class Malformed:
    """A run in which a rank answered with something else than an answer."""

    rank: int
    message: str
    size = 0


@lru_cache(_DECODED)
def decoded(decode: Callable[[bytes], Answer], sent: bytes) -> Answer:
    """Return what a rank has sent as an answer; raise MalformedError for other bytes."""
    return decode(sent)


Execution: TypeAlias = Observed | Broken | Malformed
