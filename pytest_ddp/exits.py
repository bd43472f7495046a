"""`pytest.exit` on a rank ends the run, as it does in one process."""

import json
from collections.abc import Iterable

import pytest
from _pytest.outcomes import Exit

from pytest_ddp.outcome import Outcome, Raised
from pytest_ddp.worker import Failed

_KIND = "pytest.exit"


def as_failure(wish: Exit) -> Failed:
    """Return the wish to leave as a rank tells it to the controller."""
    return Failed(_KIND, wish.msg, "", json.dumps(wish.returncode).encode())


def leave_if_asked(outcomes: Iterable[Outcome]) -> None:
    """End the run by `pytest.exit` if a rank called it."""
    for outcome in outcomes:
        if isinstance(outcome, Raised) and outcome.kind == _KIND:
            pytest.exit(f"{outcome.message} (rank {outcome.rank})", json.loads(outcome.body))
