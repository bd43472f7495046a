"""The marks of a component, from what became of its core checks. Nothing here imports torch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from conformance.checks.aspect import Aspect

LIMIT = 0.4
_NOT_JUDGED = 0.5
_MISSING = 0.5


class Outcome(NamedTuple):
    """What became of a check: its status, and the id of the failed check that kept it from running, if one did."""

    status: str
    behind: str


_UNKNOWN = Outcome("not_run", "")


@dataclass(frozen=True)
class Mark:
    """The mark of one aspect.

    Attributes:
        aspect: what it is for.
        points: what was earned, of `aspect.points`.
        missing: whether less than half of its checks passed, of those that got a verdict or failed to get one by the
            submission's fault.
    """

    aspect: Aspect
    points: float
    missing: bool

    def to_json(self) -> dict[str, Any]:
        """Return what `json.dumps` takes."""
        return {
            "name": self.aspect.name,
            "essential": self.aspect.essential,
            "missing": self.missing,
            "points": round(self.points, 2),
            "max_points": self.aspect.points,
            "checks": list(self.aspect.checks),
        }


def aspect_from_json(plain: Mapping[str, Any]) -> Aspect:
    """Return the aspect of a mark that `Mark.to_json` made."""
    return Aspect(plain["name"], plain["max_points"], tuple(plain["checks"]), plain["essential"])


def marks(aspects: Sequence[Aspect], outcomes: Mapping[str, Outcome]) -> tuple[Mark, ...]:
    """Return the mark of each aspect.

    A check that did not run because another one failed has half of its points; none if the other one is essential.
    """
    essential = {check for aspect in aspects if aspect.essential for check in aspect.checks}
    return tuple(
        _mark(aspect, [outcomes.get(check, _UNKNOWN) for check in aspect.checks], essential) for aspect in aspects
    )


def _mark(aspect: Aspect, outcomes: Sequence[Outcome], essential: Iterable[str]) -> Mark:
    shares = [_share(outcome, essential) for outcome in outcomes]
    errors = sum(outcome.status == "error" for outcome in outcomes)
    earned = sum(shares)
    return Mark(aspect, aspect.points * earned / len(shares), missing=earned + errors < _MISSING * len(shares))


def _share(outcome: Outcome, essential: Iterable[str]) -> float:
    if outcome.status == "not_run" and outcome.behind and outcome.behind not in essential:
        return _NOT_JUDGED
    return float(outcome.status == "passed")


def total(marks: Sequence[Mark]) -> float:
    """Return the points of a component: of all aspects, with a limit where an essential one is missing."""
    earned = sum(mark.points for mark in marks)
    if any(mark.missing and mark.aspect.essential for mark in marks):
        earned = min(earned, LIMIT * sum(mark.aspect.points for mark in marks))
    return round(earned, 2)
