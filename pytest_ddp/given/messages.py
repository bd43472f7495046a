"""What a rank tells the controller about one example of a Hypothesis test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from json import dumps, loads
from typing import Any


@dataclass(frozen=True)
class Told:
    """One rank's account of an example.

    Attributes:
        report: pytest's report of the example, as `PhaseAnswer` encodes it.
        rejected: why `assume` or `reject` rejected the example, None if they did not.
        origin: what tells the failure from others, as Hypothesis does: exception type and place, with its causes.
        kind: "module:name" of the exception's type.
        notes: what was passed to `note`.
        events: what was passed to `event`, with payloads.
        targets: what was passed to `target`, by label.
    """

    report: bytes = b""
    rejected: str | None = None
    origin: str = ""
    kind: str = ""
    notes: Sequence[str] = ()
    events: Mapping[str, str | float] = field(default_factory=dict)
    targets: Mapping[str, float] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the account as bytes: a line of JSON, then the report as it is."""
        return dumps({**vars(self), "report": None}).encode() + b"\n" + self.report

    @classmethod
    def decode(cls, body: bytes) -> "Told":
        """Return what `encode` was given; an empty account for no bytes."""
        line, _, report = body.partition(b"\n")
        plain: dict[str, Any] = loads(line) if line else {}
        return cls(**plain | {"report": report})
