"""Finds the test that runs next on the same ranks: it decides which fixtures of wider scope the ranks keep."""

from collections.abc import Callable
from typing import Any

import pytest

from pytest_ddp.controller.group_scope import GroupScope
from pytest_ddp.items import is_distributed
from pytest_ddp.planning.plan import Plan, Run

_positions = pytest.StashKey[dict[pytest.Item, int]]()


def next_item_on_ranks(
    session: pytest.Session,
    next_item: pytest.Item | None,
    scope: GroupScope,
    plan: Callable[[pytest.Item], Plan],
    *,
    failed: bool,
) -> pytest.Item | None:
    """Return the next test on the same warm ranks, as far as it is known; None if the ranks must end all fixtures.

    Args:
        session: the run.
        next_item: the test that pytest runs next.
        scope: the process group in which the test that ends has run.
        plan: what will be decided for a test.
        failed: whether the test that ends has failed; a group that it shares with others is not trusted then.
    """
    items: list[Any] = session.items
    position = _position(next_item, session)
    if session.shouldfail or session.shouldstop or not scope.warm or scope.group.lost:
        return None
    if position is None or (failed and scope.keeper is not None):
        return None
    for later in map(items.__getitem__, range(position, len(items))):  # no copy of the list
        decision = plan(later) if is_distributed(later) else None
        if isinstance(decision, Run) and decision.isolation == "warm":
            return later if decision.world == scope.world else None
    return None


def _position(item: pytest.Item | None, session: pytest.Session) -> int | None:
    """Return the index of a test among the tests of the run; None if it is not there."""
    if item is None:
        return None
    positions = session.stash.setdefault(_positions, {})
    index = positions.get(item)
    if index is None or session.items[index : index + 1] != [item]:  # not indexed yet, or the list has changed
        positions.clear()
        positions.update((found, place) for place, found in enumerate(session.items))
    return positions.get(item)
