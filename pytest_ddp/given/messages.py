"""What a rank sends to the controller after one example of a Hypothesis test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from json import dumps, loads
from typing import Any


@dataclass(frozen=True)
class ExampleReport:
    """One rank's report of an example.

    Attributes:
        phase: pytest's report of the call, as `PhaseAnswer` encodes it.
        rejected: why `assume` or `reject` rejected the example; None if they did not.
        origin: exception type and place of a failure and of its causes: Hypothesis tells failures apart by them.
        kind: "module:name" of the exception's type.
        notes: the texts that the test passed to `note`.
        events: what the test passed to `event`, with payloads.
        targets: what the test passed to `target`, by label.
    """

    phase: bytes = b""
    rejected: str | None = None
    origin: str = ""
    kind: str = ""
    notes: Sequence[str] = ()
    events: Mapping[str, str | float] = field(default_factory=dict)
    targets: Mapping[str, float] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the report as bytes: a line of JSON, then `phase` unchanged."""
        return dumps({**vars(self), "phase": None}).encode() + b"\n" + self.phase

    @classmethod
    def decode(cls, body: bytes) -> "ExampleReport":
        """Return the report that `encode` made; an empty report for no bytes."""
        line, _, phase = body.partition(b"\n")
        plain: dict[str, Any] = loads(line) if line else {}
        return cls(**plain | {"phase": phase})
