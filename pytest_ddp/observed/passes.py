"""The backward passes of a rank as its user knows them: one that runs inside another belongs to that one."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from pytest_ddp.observed.entry import Entry
from pytest_ddp.observed.events import BackwardBegan, BackwardReturned, Event, GradientReady


@dataclass
class Pass:
    """A backward pass, by the rank's clock.

    Attributes:
        began: when it began.
        last_gradient: when the last gradient of a parameter was ready; infinite as long as it runs.
        returned: when it returned; infinite as long as it runs.
    """

    began: float
    last_gradient: float = inf
    returned: float = inf


def passes(events: Iterable[Event]) -> list[Pass]:
    """Return the backward passes in the order in which they began."""
    found: list[Pass] = []
    running, last_gradient = set[int](), 0
    for event in events:
        if not isinstance(event, BackwardBegan | GradientReady | BackwardReturned):
            continue
        if not running:  # the first event of a pass; not its beginning if the record was cleared since
            found.append(Pass(event.time))
            last_gradient = 0
        running.add(event.backward)
        if isinstance(event, GradientReady):
            last_gradient = event.time
        if isinstance(event, BackwardReturned):
            running.remove(event.backward)
        if not running:
            found[-1].last_gradient, found[-1].returned = last_gradient, event.time
    return found


def pass_of(entry: Entry, found: Iterable[Pass]) -> Pass | None:
    """Return the pass in which an operation was launched, if it was in one."""
    if entry.launched.backward is None:
        return None
    return next((one for one in found if one.returned > entry.launched.time), None)
