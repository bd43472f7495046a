"""Failures of ranks, as exceptions that Hypothesis can tell from those of other bugs."""

import functools
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pytest_ddp.errors import PytestDDPError
from pytest_ddp.given.messages import Told
from pytest_ddp.outcomes.failure import details, failure_origin, failures, headline, is_consequence
from pytest_ddp.outcomes.hang_diagnosis import caused_by_peer_loss
from pytest_ddp.outcomes.outcome import Outcome
from pytest_ddp.planning.world import World


class ExampleFailed(PytestDDPError):  # noqa: N818  as RankFailure
    """An example failed on some ranks. Every bug has a subclass of its own, which is how Hypothesis tells them apart.

    Attributes:
        outcomes: what became of each rank, in rank order.
        world: the world that it failed in.
    """

    def __init__(self, outcomes: Sequence[Outcome], world: World) -> None:
        Exception.__init__(self)  # the other base, which is any, may want arguments
        self.outcomes = tuple(outcomes)
        self.world = world

    def __str__(self) -> str:
        if not failures(self.outcomes):
            return "some ranks skipped this example and others did not"
        return "\n".join([headline(self.outcomes, self.world), *details(self.outcomes)])


def failed(outcomes: Sequence[Outcome], told: Mapping[int, Told], world: World) -> ExampleFailed:
    """Return the exception for an example that failed, or that some ranks skipped, of a type that names the bug."""
    found = failures(outcomes)
    if not found or is_consequence(found[0]):
        return _type_of_bug("the ranks disagree", "")(outcomes, world)
    # Of ranks that failed by themselves the first in time is the root cause, but which one that is may change.
    root = min(
        (o for o in found if not is_consequence(o)), key=lambda outcome: (caused_by_peer_loss(outcome), outcome.rank)
    )
    account = told.get(root.rank, Told())
    return _type_of_bug(account.origin or failure_origin(root), account.kind)(outcomes, world)


@functools.cache
def _type_of_bug(origin: str, kind: str) -> type[ExampleFailed]:
    """Return the type of all failures with this origin; it is also of the type that was raised on the rank."""
    name = kind.rpartition(":")[2].rpartition(".")[2] or ExampleFailed.__name__
    words = {"__doc__": origin, "__module__": kind.partition(":")[0] or __name__}
    raised = _find(kind)
    if raised is not None:
        with suppress(Exception):  # a foreign class may forbid anything
            bug = type(name, (ExampleFailed, raised), words)
            bug((), World(1))
            return bug
    return type(name, (ExampleFailed,), words)


def _find(kind: str) -> type[Exception] | None:
    module, _, name = kind.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None
