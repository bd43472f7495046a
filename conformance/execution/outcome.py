"""What comes of a scenario or a case on ranks: the answers of all of them, or how they broke."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from conformance.protocol.messages import Answer
from conformance.submissions.location import Location
from pytest_ddp.errors import ProtocolError, PytestDDPError
from pytest_ddp.outcomes.failure import describe_outcome, root_cause
from pytest_ddp.outcomes.outcome import Died, Outcome, Raised, TimedOut

_NEVER_OURS = (ProtocolError.__name__, KeyboardInterrupt.__name__)

_DECODED = 8  # two runs on four ranks: a check that fails is judged again and again on one
_DECODED_BYTES = 2**20  # of one answer that is kept decoded


class HarnessError(PytestDDPError):
    """Something of ours failed: never the submission's loss."""


@dataclass(frozen=True)
class Observed:
    """A run that came to its end."""

    seed: int  # the numbers that ranks were given are drawn from it
    kind: type[Answer]  # what each rank answered
    sent: tuple[tuple[bytes, ...], ...]  # by world, then by rank: decoded, small tensors take twenty times the memory

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
        refused = self._where.get("refused") and isinstance(self.root, Raised)
        return f"{self.root.kind}: {self.root.message}" if refused and isinstance(self.root, Raised) else ""

    @property
    def lacking(self) -> str:
        """What the rank's machine lacks, and how to provide it; empty if the run broke for another reason."""
        return str(self._where.get("lacking", ""))

    @property
    def place(self) -> tuple[str, int | None] | None:
        """The stage and the step in which the submission raised; None if it did not raise, or not in a stage."""
        return (self._where["stage"], self._where["step"]) if self._where else None

    @property
    def _where(self) -> dict[str, Any]:
        """What the boundary on the rank says about an exception (see `conformance.ranks.boundary`)."""
        try:
            where: Any = json.loads(self.root.body) if isinstance(self.root, Raised) else None
        except ValueError:
            return {}
        match where:
            case {"stage": str(), "step": int() | None, "refused": bool(), "lacking": str()}:
                return dict(where)
        return {}


@dataclass(frozen=True)
class Malformed:
    """A run in which a rank answered with something else than an answer."""

    rank: int
    message: str
    size = 0


def decoded(decode: Callable[[bytes], Answer], sent: bytes) -> Answer:
    """Return what a rank has sent as an answer; raise MalformedError for other bytes."""
    return _kept_decoded(decode, sent) if len(sent) <= _DECODED_BYTES else decode(sent)


@lru_cache(_DECODED)
def _kept_decoded(decode: Callable[[bytes], Answer], sent: bytes) -> Answer:
    return decode(sent)


forget_decoded = _kept_decoded.cache_clear


Execution: TypeAlias = Observed | Broken | Malformed


def is_of_submission(outcome: Raised, location: Location) -> bool:
    """Whether what a rank raised is certain to be the submission's doing, wherever it was raised.

    It is if it was raised within the boundary, if the submission wrote to the connection or interrupted the main
    thread, and if a signal handler raised it: the handler is in the traceback, unless it struck again meanwhile.
    """
    in_its_files = any(f"{root}/" in outcome.traceback for root in location.import_roots)
    without_frames = 'File "' not in outcome.traceback
    return bool(outcome.body) or in_its_files or without_frames or outcome.kind in _NEVER_OURS


def why_no_answer(outcome: Outcome, location: Location) -> str:
    """Return in words what kept a rank from an answer, with the submission's own lines."""
    match outcome:
        case Raised(kind=ProtocolError.__name__):
            return "they write to the connection between the rank and the judge, a file that they did not open"
        case Raised():
            return f"{outcome.traceback}\n{outcome.kind}: {outcome.message}"
        case Died():
            return f"importing them ended the process: it {describe_outcome(outcome).partition(';')[0]}"
        case TimedOut():
            lines = [line for line in outcome.stack.splitlines() if any(root in line for root in location.import_roots)]
            return "\n".join(
                [f"importing them did not end within {outcome.timeout:g} s; --import-seconds N allows more", *lines]
            )
        case _:
            return "the rank that has imported them sends something that is no answer"
