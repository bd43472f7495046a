"""The marks of a component, from what became of its core checks. Nothing here imports torch."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from conformance.checks.aspect import Aspect

AspectStatus: TypeAlias = Literal["passed", "missing", "failed", "not_run"]
_MISSING = 0.5
_VERDICTS = {"passed", "failed"}
_UNJUDGED = {"error", "not_gradable"}  # nothing is known, neither of such a check nor of those behind it


@dataclass(frozen=True)
class Rules:
    """How points follow from outcomes.

    Attributes:
        limit: the largest share of a component's points that is left where an essential aspect is missing.
        not_judged: the share of a check's points where it did not run because another one failed.
        bonus: points for extended checks, on top of the others; each one that passes has an equal share.
        hidden: the ids of checks about which a report for students says nothing but their points.
    """

    limit: float = 0.4
    not_judged: float = 0.5
    bonus: float = 0.0
    hidden: tuple[str, ...] = ()


RULES = Rules()


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
        status: passed; missing, for an essential aspect of whose checks less than half passed or got no verdict;
            not_run, if no check of another one failed; else failed.
    """

    aspect: Aspect
    points: float
    status: AspectStatus

    def to_json(self) -> dict[str, Any]:
        """Return what `json.dumps` takes."""
        return {
            "name": self.aspect.name,
            "essential": self.aspect.essential,
            "status": self.status,
            "points": round(self.points, 2),
            "max_points": self.aspect.points,
            "checks": list(self.aspect.checks),
        }


def aspect_from_json(plain: Mapping[str, Any]) -> Aspect:
    """Return the aspect of a mark that `Mark.to_json` made."""
    return Aspect(plain["name"], plain["max_points"], tuple(plain["checks"]), plain["essential"])


def marks(aspects: Sequence[Aspect], outcomes: Mapping[str, Outcome], rules: Rules = RULES) -> tuple[Mark, ...]:
    """Return the mark of each aspect.

    A check that did not run because another one failed has half of its points by default, none if that is essential.
    """
    essential = essential_checks(aspects)
    unjudged = {check for check, outcome in outcomes.items() if outcome.status in _UNJUDGED}
    return tuple(
        _mark(aspect, [outcomes.get(check, _UNKNOWN) for check in aspect.checks], essential, unjudged, rules)
        for aspect in aspects
    )


def essential_checks(aspects: Sequence[Aspect]) -> set[str]:
    """Return the ids of the checks of essential aspects."""
    return {check for aspect in aspects if aspect.essential for check in aspect.checks}


def _mark(
    aspect: Aspect, outcomes: Sequence[Outcome], essential: Iterable[str], unjudged: Collection[str], rules: Rules
) -> Mark:
    earned = [share(outcome, essential, rules) for outcome in outcomes]
    without_verdict = (one.status not in _VERDICTS and (not one.behind or one.behind in unjudged) for one in outcomes)
    most = [max(pair) for pair in zip(earned, without_verdict, strict=True)]
    status = _status(aspect, {outcome.status for outcome in outcomes}, sum(most) / len(most))
    return Mark(aspect, aspect.points * sum(earned) / len(earned), status)


def _status(aspect: Aspect, found: AbstractSet[str], most: float) -> AspectStatus:
    """Return the status of an aspect that has these outcomes; `most` is the share of it that may be right."""
    if found == {"passed"}:
        return "passed"
    if aspect.essential and most < _MISSING:
        return "missing"
    return "not_run" if found <= {"passed", "not_run"} else "failed"


def share(outcome: Outcome, essential: Iterable[str], rules: Rules) -> float:
    """Return the share of a check's points that it has; `essential` are the ids of the checks of essential aspects."""
    if outcome.status == "not_run" and outcome.behind and outcome.behind not in essential:
        return rules.not_judged
    return float(outcome.status == "passed")


def total(marks: Sequence[Mark], rules: Rules = RULES, extended: Sequence[str] = ()) -> float:
    """Return the points of a component: of all aspects, with a limit where an essential one is missing, and the bonus.

    Args:
        marks: of all aspects.
        rules: how points follow from outcomes.
        extended: the statuses of the extended checks.
    """
    earned = sum(mark.points for mark in marks)
    earned += rules.bonus * extended.count("passed") / len(extended) if extended else 0.0
    if any(mark.status == "missing" for mark in marks):
        earned = min(earned, rules.limit * sum(mark.aspect.points for mark in marks))
    return round(earned, 2)
