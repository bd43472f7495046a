"""What a check is: an assertion, a strategy that draws what it holds, and words for the reader of a report."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from hypothesis import strategies as st

from conformance.strategies import Bounds

Level: TypeAlias = Literal["core", "extended"]
Theme: TypeAlias = Literal[
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


class Unclaimed(NotOffered):
    """The property is about what a library does not claim; the message is the claim."""


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
        theme: what it is about. The points are those of the aspects (see `aspect.py`) of the component.
        level: core if the assignment's own text asks for it, extended if only torch's own implementations promise it.
        requires: ids of checks of the component that must pass first.
        rules_out: names of known mistakes that must give other numbers than correct code, or a scenario is not used.
        explores: returns a scenario of simulated ranks, which run it in every order; what `scenarios` draws is used
            only if there are too many orders.
        exact: whether scenarios in float64 stay so where the component is judged in float32.
        advice: what is special about the scenarios, and what to do about it; precedes other advice on a failure.
    """

    id: str
    property: str
    scenarios: Callable[[Bounds], st.SearchStrategy[Any]]
    assertion: Callable[[Any], None]
    theme: Theme
    level: Level = "core"
    requires: tuple[str, ...] = ()
    rules_out: tuple[str, ...] = ()
    explores: Callable[[Bounds], Any] | None = None
    exact: bool = False
    advice: str = ""
