"""What comes of a scenario or a case on ranks: the answers of all of them, or how they broke."""

import json
from dataclasses import dataclass
from typing import TypeAlias

from conformance.protocol.messages import Answer
from conformance.workload.numbers import Tensors
from pytest_ddp.errors import PytestDDPError
from pytest_ddp.outcomes.failure import root_cause
from pytest_ddp.outcomes.outcome import Outcome, Raised, TimedOut


class HarnessError(PytestDDPError):
    """Something of ours failed: never the submission's loss."""


@dataclass(frozen=True)
class Observed:
    """A run that came to its end.

    Attributes:
        seed: what the numbers that the ranks were given are drawn from.
        given: by world, then by rank, what each was given.
        answers: by world, then by rank, what each answered.
    """

    seed: int
    given: list[list[Tensors]]
    answers: list[list[Answer]]


@dataclass(frozen=True)
class Broken:
    """A run in which a rank raised, died or hung."""

    outcomes: tuple[Outcome, ...]

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


Execution: TypeAlias = Observed | Broken | Malformed
