"""Which test, if any, will find the fixtures of wider scope that a test leaves on its ranks."""

from collections.abc import Callable
from typing import Any

import pytest

from pytest_ddp.controller.group_scope import Place
from pytest_ddp.items import is_distributed
from pytest_ddp.planning.plan import Plan, Run

_positions = pytest.StashKey[dict[pytest.Item | None, int]]()


def following(
    session: pytest.Session,
    upcoming: pytest.Item | None,
    place: Place,
    plan: Callable[[pytest.Item], Plan],
    *,
    failed: bool,
) -> pytest.Item | None:
    """Return the next test on the same warm ranks, as far as can be known; None if the ranks must end all fixtures.

    Args:
        session: the run.
        upcoming: what pytest runs next.
        place: where the test that ends has run.
        plan: what is decided for a test.
        failed: whether the test that ends has failed; a group that it shares with others is not to be trusted then.
    """
    items: list[Any] = session.items
    position = _position(upcoming, session)
    if session.shouldfail or session.shouldstop or not place.warm or place.group.lost:
        return None
    if position is None or (failed and place.keeper is not None):
        return None
    for later in map(items.__getitem__, range(position, len(items))):  # without a walk or a copy up to there
        decision = plan(later) if is_distributed(later) else None
        if isinstance(decision, Run) and decision.isolation == "warm":
            return later if decision.world == place.world else None
    return None


def after(item: pytest.Item) -> pytest.Item | None:
    """Return the test that pytest's own loop runs after this one."""
    items, position = item.session.items, _position(item, item.session)
    return None if position is None or position + 1 == len(items) else items[position + 1]


def _position(item: pytest.Item | None, session: pytest.Session) -> int | None:
    """Return where the test stands among those of the run; None if it is not there."""
    positions = session.stash.setdefault(_positions, {})
    place = positions.get(item)
    if place is None or session.items[place : place + 1] != [item]:  # not looked yet, or others have changed the list
        positions.clear()
        positions.update((found, place) for place, found in enumerate(session.items))
    return positions.get(item)
