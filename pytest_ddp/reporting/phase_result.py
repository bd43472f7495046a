"""What became of one phase of a test, on all its ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_ddp.outcomes.outcome import Outcome, Raised, Returned, Skipped
from pytest_ddp.planning.world import World
from pytest_ddp.protocol.phases import PhaseAnswer


@dataclass(frozen=True)
class PhaseResult:
    """One outcome per rank, and what each rank's pytest answered, decoded.

    Attributes:
        world: the world of the test.
        outcomes: in rank order.
        answers: by rank; an empty answer for a rank that died or hung.
    """

    world: World
    outcomes: Sequence[Outcome]
    answers: Mapping[int, PhaseAnswer]

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], world: World) -> "PhaseResult":
        """Decode the answers of the ranks."""
        return cls(world, outcomes, {outcome.rank: _answer(outcome) for outcome in outcomes})

    @property
    def passed_plainly(self) -> bool:
        """Whether the phase passed on every rank and no rank has more to report, as is usual."""
        passed = all(answer.passed is not None for answer in self.answers.values())
        return passed and all(isinstance(outcome, Returned) for outcome in self.outcomes)


def _answer(outcome: Outcome) -> PhaseAnswer:
    return PhaseAnswer.decode(outcome.body) if isinstance(outcome, Returned | Raised | Skipped) else PhaseAnswer()
