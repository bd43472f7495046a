"""What a check is: an assertion, a strategy that draws what it holds, and words for the reader of a report."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from hypothesis import strategies as st

from conformance.strategies import Bounds

Level: TypeAlias = Literal["core", "extended"]
Aspect: TypeAlias = Literal[
    "numbers",
    "kinds of parameters and layers",
    "precision",
    "use of the model",
    "parameters that take part",
    "accumulation",
    "options and groups",
    "order of samples",
    "conversion",
    "saving and loading",
    "waiting",
    "communication",
    "memory and state",
    "robustness",
]


class Violation(AssertionError):  # noqa: N818  a verdict, not a fault of the program
    """A property does not hold.

    Attributes:
        message: what was seen, what was expected, and where.
        advice: what to do; empty where a known mistake may explain the failure better.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message, advice)
        self.message, self.advice = message, advice

    def __str__(self) -> str:
        return self.message


class NotOffered(Exception):  # noqa: N818  no fault of anybody
    """The submission lacks an optional feature that the property is about; the message names the feature."""


class Refused(NotOffered):
    """The submission raised an exception for an optional feature that the property is about."""


@dataclass(frozen=True)
class Check:
    """One property of a component.

    Attributes:
        id: unique within the component; variants of one assertion are called `assertion[variant]`.
        property: what should hold, in a sentence that is understood alone.
        scenarios: draws scenarios or cases.
        assertion: holds one trial, of a scenario or of a case, to the property; raises Violation.
        aspect: the theme under which the check is listed.
        level: core if the assignment's own text asks for it, extended if only torch's own implementations promise it.
        points: marks for passing; extended checks give none.
        requires: ids of checks of the component that must pass first.
        rules_out: names of known mistakes that must give other numbers than correct code, or a scenario is not used.
        advice: what is special about the scenarios, and what to do about it; precedes other advice on a failure.
    """

    id: str
    property: str
    scenarios: Callable[[Bounds], st.SearchStrategy[Any]]
    assertion: Callable[[Any], None]
    aspect: Aspect
    level: Level = "core"
    points: float = 1.0
    requires: tuple[str, ...] = ()
    rules_out: tuple[str, ...] = ()
    advice: str = ""


def validate(component: str, checks: Sequence[Check], mistakes: Collection[str]) -> None:
    """Validate the table of checks of a component; `mistakes` are the names of all known mistakes.

    Raises:
        ValueError: a check has no words or the id of an earlier one, requires a check that does not come before it or
            that is extended where it is core itself, or rules out a mistake that is not known.
    """
    before: dict[str, Check] = {}
    for check in checks:
        for problem in _problems(check, before, mistakes):
            raise ValueError(f"{component}: the check {check.id!r} {problem}")
        before[check.id] = check


def _problems(check: Check, before: Mapping[str, Check], mistakes: Collection[str]) -> Iterator[str]:
    if not check.id.strip() or not check.property.strip():
        yield "has no id or no property"
    if check.id in before:
        yield "has the id of an earlier check"
    for required in check.requires:
        if required not in before:
            yield f"requires {required!r}, which does not come before it"
        elif check.level == "core" and before[required].level == "extended":
            yield f"is core and requires {required!r}, which is extended"
    for name in set(check.rules_out).difference(mistakes):
        yield f"rules out {name!r}, which is no known mistake"
