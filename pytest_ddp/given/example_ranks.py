"""The ranks that run the examples of one Hypothesis test."""

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddp.outcomes.outcome import Outcome
from pytest_ddp.pool.group import RankGroup
from pytest_ddp.pool.pool import RankPool
from pytest_ddp.protocol.targets import EXAMPLE, PROCEED, RUN_TEST


@dataclass
class ExampleRanks:
    """A process group in which a test is set up.

    Attributes:
        pool: the pool that the group belongs to.
        group: the group.
        timeout: seconds that an example, setup or teardown may take.
        setup: the `RunTest` that sets the test up.
        teardown: the `Proceed` that tears the test and all its fixtures down.
    """

    pool: RankPool
    group: RankGroup
    timeout: float
    setup: bytes
    teardown: bytes

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
