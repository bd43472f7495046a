"""The Hypothesis tests among distributed tests, and the ranks of their examples. Imports Hypothesis only for them."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddp.items import is_distributed
from pytest_ddp.outcomes.failure import is_consequence
from pytest_ddp.outcomes.outcome import Outcome
from pytest_ddp.pool.group import RankGroup
from pytest_ddp.pool.pool import RankPool
from pytest_ddp.protocol.targets import EXAMPLE, PROCEED, RUN_TEST
from pytest_ddp.pytest_internals import fixture_definitions, parameters, replaced_request

_STATE_MACHINE = (
    "@distributed does not work on a state machine, whose rules run in the controller. Keep the object under test on "
    "ranks, and let the rules call it: ddp_ranks(world_size=2).hold(factory), see docs/hypothesis.md"
)


def is_given(item: pytest.Item) -> bool:
    """Whether the test is decorated with Hypothesis's `@given`."""
    return hasattr(getattr(item, "obj", None), "hypothesis")


def check_hypothesis(item: pytest.Item) -> None:
    """Fail a test that Hypothesis runs without `@given`: a state machine."""
    if getattr(getattr(item, "obj", None), "is_hypothesis_test", False) and not is_given(item):
        pytest.fail(_STATE_MACHINE, pytrace=False)


@dataclass
class ExampleRanks:
    """A process group in which a test is set up.

    Attributes:
        pool: the pool that the group belongs to.
        group: the group.
        timeout: seconds that an example, setup or teardown may take.
        setup: the `RunTest` that sets the test up.
        teardown: the `Proceed` that tears the test and all its fixtures down.
        simulation: values of `schedule` and `faults` for simulated ranks: what all examples have, or strategies.
    """

    pool: RankPool
    group: RankGroup
    timeout: float
    setup: bytes
    teardown: bytes
    simulation: Mapping[str, Any] = field(default_factory=dict)

    def run(self, body: bytes, *, shown: bool) -> list[Outcome]:
        """Run one example.

        If a rank fails, the ranks that wait for it fail at once. If the report will show this example, they are stopped
        after the grace instead, so that it has their stacks.
        """
        return self.group.run(EXAMPLE, body, timeout=self.timeout, disconnect=not shown)

    def are_in_step(self, outcomes: Sequence[Outcome]) -> bool:
        """Whether the group can run another example after one that failed.

        It cannot if a rank may have an operation in flight, which would match an operation of the next example.
        """
        group = self.group
        if group.world.simulated:
            return not group.lost_processes and not any(map(is_consequence, outcomes))
        entered = (one for outcome in outcomes for one in outcome.collectives)
        return not (
            group.lost_processes
            or group.disconnected
            or len({process.collectives_entered for process in group.processes}) > 1
            or any(one.peer is not None for one in entered)
        )

    def renew(self) -> list[Outcome]:
        """Set the test up again in a new process group, with new ranks for lost ones; return the outcomes of setup.

        Raises:
            LaunchError: when ranks cannot be started.
        """
        self.group.run(PROCEED, self.teardown, timeout=self.timeout)  # may fail, since the group is broken
        self.pool.ranks_with_fixtures = 0
        self.pool.renew(self.group)
        return self.group.run(RUN_TEST, self.setup, timeout=self.timeout)


def fixtures_stay_on_ranks(item: Any) -> AbstractContextManager[None]:
    """Keep Hypothesis's pytest plugin from setting fixtures up in the controller, where it looks at their scopes."""
    is_ours = is_distributed(item) and is_given(item)
    return replaced_request(item, _request_for_hypothesis(item)) if is_ours else nullcontext()


def _request_for_hypothesis(item: Any) -> SimpleNamespace:
    """Return the part of a `request` that Hypothesis's pytest plugin reads, with plain values for fixtures."""

    def fixture(name: str) -> SimpleNamespace:
        is_constant = name == "ddp" or name in parameters(item)
        scope = "session" if is_constant else fixture_definitions(item)[name][-1].scope
        return SimpleNamespace(argname=name, scope=scope, params=hasattr(item, "callspec"))

    info = SimpleNamespace(name2fixturedefs={name: [fixture(name)] for name in fixture_definitions(item)})
    manager = SimpleNamespace(getfixtureinfo=lambda **_: info)
    return SimpleNamespace(_fixturemanager=manager, _get_active_fixturedef=fixture)
