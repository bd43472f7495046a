"""Failing examples as exceptions: each bug has a type of its own, by which Hypothesis tells bugs apart."""

import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pytest_ddp.errors import PytestDDPError
from pytest_ddp.given.messages import ExampleReport
from pytest_ddp.outcomes.failure import details, failure_origin, failures, headline, is_consequence
from pytest_ddp.outcomes.hang_diagnosis import caused_by_peer_loss
from pytest_ddp.outcomes.outcome import Outcome
from pytest_ddp.planning.world import World
from pytest_ddp.reporting.exception_info import loaded_type


class ExampleFailed(PytestDDPError):  # noqa: N818  as RankFailure
    """An example failed; base of the types that `example_failure` makes.

    Attributes:
        outcomes: one per rank, in rank order.
        world: the world of the test.
    """

    def __init__(self, outcomes: Sequence[Outcome], world: World) -> None:
        Exception.__init__(self)  # the other base class may be any exception, and require arguments
        self.outcomes = tuple(outcomes)
        self.world = world

    def __str__(self) -> str:
        if not failures(self.outcomes):
            return "at least one rank skipped this example, and another did not"
        return "\n".join([headline(self.outcomes, self.world), *details(self.outcomes)])


def example_failure(outcomes: Sequence[Outcome], reports: Mapping[int, ExampleReport], world: World) -> ExampleFailed:
    """Return the exception for an example that failed, or that only a part of the ranks skipped."""
    found = failures(outcomes)
    if not found or is_consequence(found[0]):
        return _bug_type("the ranks disagree", "")(outcomes, world)
    # The type must be the same whenever the bug is found, so it follows the lowest rank, not the first in time.
    own = [outcome for outcome in found if not is_consequence(outcome)]
    root = min(own, key=lambda outcome: (caused_by_peer_loss(outcome), outcome.rank))
    report = reports.get(root.rank, ExampleReport())
    return _bug_type(report.origin or failure_origin(root), report.kind)(outcomes, world)


@functools.cache
def _bug_type(origin: str, kind: str) -> type[ExampleFailed]:
    """Return the type of all failures with this origin; it also derives from the exception type on the rank."""
    module, _, qualname = kind.partition(":")
    name = qualname.rpartition(".")[2] or ExampleFailed.__name__
    attributes = {"__doc__": origin, "__module__": module or __name__}
    raised = loaded_type(module, qualname, Exception)
    if raised is not None:
        with suppress(Exception):  # a foreign class may refuse to be derived from
            bug = type(name, (ExampleFailed, raised), attributes)
            bug((), World(1))
            return bug
    return type(name, (ExampleFailed,), attributes)
