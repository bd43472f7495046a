"""`ddp_ranks`: plain tests call functions on ranks and get what each rank returned."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pytest_ddp.planning.world import World
from pytest_ddp.pool.pool import RankPool
from pytest_ddp.protocol.targets import CALL
from pytest_ddp.remote_calls.objects import Held
from pytest_ddp.remote_calls.pickling import dump_call, pack_result, results, run_call


@dataclass(frozen=True)
class RankCaller:
    """Runs functions on the ranks of one world; every run has a fresh process group."""

    ranks: Callable[[], RankPool]
    lease: Callable[[], AbstractContextManager[World]]
    world: World
    timeout: float

    def run(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> list[Any]:
        """Call `function(*arguments, **keywords)` on every rank.

        Function, arguments and results are pickled (with cloudpickle, so lambdas and closures travel too).

        Returns:
            What each rank returned, in rank order.

        Raises:
            RankFailure: when a rank raised, died or hung; the report names the root cause.
            PytestDDPError: when some ranks skipped and others did not.
        """
        __tracebackhide__ = True
        body = dump_call(function, arguments, keywords)
        with self.lease() as world:
            outcomes = self.ranks().run(world, CALL, body, timeout=self.timeout)
        return results(outcomes, self.world)

    def hold(self, factory: Callable[..., Any], *arguments: Any, **keywords: Any) -> Held:
        """Make an object on every rank, `factory(*arguments, **keywords)`, and keep it there for several calls.

        All calls run in one process group; see `Held`, which is a context manager.

        Raises:
            RankFailure: when the object could not be made on every rank.
        """
        __tracebackhide__ = True
        return Held(self.ranks(), self.lease, self.timeout, dump_call(factory, arguments, keywords))


def call(body: bytes) -> bytes:
    """Be called on a rank: run the pickled function and pickle what it returns; put back what it changed."""
    from pytest_ddp.rank_session.leaks import Snapshot  # noqa: PLC0415  imports torch: the rank's side only

    before = Snapshot.take()
    try:
        return pack_result(run_call(body))
    finally:
        before.put_back()
