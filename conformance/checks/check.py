"""What a check is, what it gets, and how it says no."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from inspect import getdoc
from typing import Any, Literal, TypeAlias

import torch
from hypothesis import strategies as st

from conformance.oracle.remembered import inputs_of, right_training
from conformance.oracle.tolerance import Limits, difference, float64_limits
from conformance.oracle.training import Trajectory, train
from conformance.protocol.messages import Answer, Happening, Observation
from conformance.scenarios.scenario import Scenario
from conformance.strategies import Bounds
from conformance.workload.numbers import RankInputs, Tensors, wide

Level: TypeAlias = Literal["core", "extended"]
Shows: TypeAlias = Literal[
    "broadcast",
    "training",
    "waits",
    "overlap",
    "collectives",
    "closure",
    "zero_grad",
    "state",
    "buffers",
    "growth",
    "volume",
    "early_gradients",
    "modes",
    "dropped",
    "unlisted",
    "moved",
    "altered",
    "lost",
    "overflow",
    "generators",
    "lazy",
]
UNSYNCHRONISED = "never synchronised"
MISSING = "is missing"
GENERATORS = {"torch": "torch's", "random": "Python's `random`", "numpy": "NumPy's"}
WAIT = (
    "Every collective with `async_op=True` returns a handle: call its `wait()` before its result is used. Without "
    "that, numbers are wrong now and then, on a fast network more often."
)


class Violation(AssertionError):  # noqa: N818  a verdict, not a fault of the program
    """A property does not hold; the message says what was seen, what was expected, and where; `advice` what to do."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message, advice)
        self.message, self.advice = message, advice

    def __str__(self) -> str:
        return self.message


@contextmanager
def advising(advice: str) -> Iterator[None]:
    """Let a violation of a property that is held inside, under special circumstances, say what to do about these."""
    try:
        yield
    except Violation as wrong:
        raise Violation(wrong.message, advice) from None


class NotOffered(Exception):  # noqa: N818  no fault of anybody
    """The submission lacks what the property is about, and need not have it; the message says what."""


class Refused(NotOffered):
    """The submission says by an exception that it does not do what the property is about, and need not."""


@dataclass(frozen=True)
class Trial:
    """A scenario, what the numbers that were fed to the ranks are drawn from, and what they saw."""

    scenario: Scenario
    seed: int
    observations: tuple[Observation, ...]

    @property
    def inputs(self) -> list[RankInputs]:
        """What was fed to each rank."""
        return inputs_of(self.scenario, self.seed)

    @cached_property
    def expected(self) -> Trajectory:
        """What one process on the batches of all ranks gives."""
        return self.under(self.scenario) if self.scenario.model.narrow else right_training(self.scenario, self.seed)

    def under(self, scenario: Scenario) -> Trajectory:
        """Return what one process gives under another schedule, its rounding as on rank 0."""
        seen, steps = self.observations[0], range(self.scenario.steps)
        taken = Trajectory(
            gradients=[seen.gradients(step) for step in steps], parameters=[seen.parameters(step) for step in steps]
        )
        return train(scenario, self.inputs, follow=taken)


@dataclass(frozen=True)
class CaseTrial:
    """A case, and what each rank of each of its worlds was given and answered.

    Attributes:
        case: the case; of the type that the check is for.
        phases_given, phases: by world, then by rank.
    """

    case: Any
    phases_given: list[list[Tensors]]
    phases: list[list[Answer]]

    def unawaited(self, rank: int) -> list[str]:
        """Return the operations that nobody has waited for on a rank of the last world, with their lines."""
        return self.phases[-1][rank].unawaited

    @property
    def given(self) -> list[Tensors]:
        """What the ranks of the last world were given."""
        return self.phases_given[-1]

    @property
    def answers(self) -> list[Tensors]:
        """What the ranks of the last world answered."""
        return [answer.tensors for answer in self.phases[-1]]


@dataclass(frozen=True)
class Check:
    """A property and how to look for a scenario that breaks it.

    Attributes:
        function: holds one trial, of a scenario or of a case, to the property; raises Violation.
        scenarios: draws scenarios or cases.
        level: core if the assignment's own text asks for it, extended if only torch's own implementations promise it.
        points: marks for passing; extended checks give none.
        requires: ids of checks of the component that must pass first.
        shows: what a reproduction of a failure is to show.
        rules_out: names of known mistakes that must give other numbers than correct code, or the scenario is not used.
    """

    function: Callable[[Any], None]
    scenarios: Callable[[Bounds], st.SearchStrategy[Any]]
    level: Level = "core"
    points: float = 1.0
    requires: tuple[str, ...] = ()
    shows: Shows = "training"
    rules_out: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The function's name."""
        return self.function.__name__

    @property
    def property(self) -> str:
        """The first line of the function's docstring."""
        return (getdoc(self.function) or "").partition("\n")[0]


@dataclass(frozen=True)
class Mismatch:
    """The first tensor, by name, that is not what it should be."""

    name: str
    words: str


def first_mismatch(observed: Tensors, expected: Tensors, limits: Limits | None = None) -> Mismatch | None:
    """Return the first expected tensor that is absent or differs by more than rounding, in words.

    Args:
        observed: what a rank reported.
        expected: what the oracle computed.
        limits: how far rounding may take each, in absolute terms; without them, as in float64.
    """
    limits = float64_limits(expected) if limits is None else limits
    for name, wanted in expected.items():
        seen = observed.get(name)
        if seen is None:
            return Mismatch(name, MISSING)
        if seen.shape != wanted.shape:
            return Mismatch(name, f"has the shape {list(seen.shape)}, expected {list(wanted.shape)}")
        apart = difference(seen, wanted, limit=limits[name])
        if not apart.negligible:
            where = element_apart(seen, wanted)
            return Mismatch(
                name, f"is off by {apart.absolute:.3g} ({_share(apart.relative)} its largest element): {where}"
            )
    return None


def _share(relative: float) -> str:
    if relative >= 2:  # noqa: PLR2004  "2 times" reads better than "200% of"
        return f"{relative:.0f} times"
    return f"{relative:.0%} of" if relative >= 0.01 else f"{relative:.1e} of"  # noqa: PLR2004  a percent


def element_apart(seen: torch.Tensor, wanted: torch.Tensor) -> str:
    """Return where two tensors of one shape differ most, with both values."""
    flat = (wide(seen) - wide(wanted)).abs().flatten()
    at = int(torch.where(flat.isnan(), torch.inf, flat).argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(at), seen.shape)] if seen.dim() else []
    place = f"element {index} " if index else ""
    one, other = seen.flatten()[at].item(), wanted.flatten()[at].item()
    digits = ".6g" if f"{one:.6g}" != f"{other:.6g}" else ".17g"
    return f"{place}seen {one:{digits}}, expected {other:{digits}}"


def of_the_model(one: Happening, scenario: Scenario) -> bool:
    """Return whether something that happened is the launch of a collective with numbers of the model in it."""
    return one.what == "launched" and one.dtype in scenario.model.dtypes.values() and one.bytes > 0


def launches(happened: list[Happening], scenario: Scenario) -> list[int]:
    """Return which of what happened are launches of collectives with numbers of the model in them.

    Where there are none, those of raw bytes, as which numbers may travel too.
    """
    ours = [at for at, one in enumerate(happened) if of_the_model(one, scenario)]
    return ours or [at for at, one in enumerate(happened) if one.what == "launched" and one.dtype == "uint8"]


def step_words(scenario: Scenario, step: int) -> str:
    """Return "step 1 of 3" for step 0."""
    return f"step {step + 1} of {scenario.steps}"


def never_awaited(operations: list[str]) -> str:
    """Return a sentence about operations that nobody has waited for; empty if there are none."""
    more = f" and {len(operations) - 1} more" if len(operations) > 1 else ""
    return f" Nobody waited at all for {operations[0]}{more}." if operations else ""


def moved_generators(answer: Tensors) -> str:
    """Return which of the global generators have moved on a rank, in words; nothing if none has."""
    return generators_listed(name for name in GENERATORS if bool(answer[f"moved/{name}"]))


def generators_listed(names: Iterable[str]) -> str:
    """Return these global generators in words."""
    return " and ".join(GENERATORS[name] for name in names)


def listed(names: Iterable[str]) -> str:
    """Return names in backquotes, at most four of them."""
    names = list(names)
    shown = ", ".join(f"`{name}`" for name in names[:4])
    return shown + (f" and {len(names) - 4} more" if len(names) > 4 else "")  # noqa: PLR2004  the same four
