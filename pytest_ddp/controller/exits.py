"""`pytest.exit` on a rank ends the run, as it does in one process."""

import json
from collections.abc import Iterable

import pytest

from pytest_ddp.outcomes.outcome import Outcome, Raised
from pytest_ddp.protocol.phases import EXIT_KIND


def leave_if_asked(outcomes: Iterable[Outcome]) -> None:
    """End the run by `pytest.exit` if a rank called it."""
    for outcome in outcomes:
        if isinstance(outcome, Raised) and outcome.kind == EXIT_KIND:
            pytest.exit(f"{outcome.message} (rank {outcome.rank})", json.loads(outcome.body))
