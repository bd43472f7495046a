"""The fixture `ddp_ranks`: a plain test calls functions on ranks, and gets what each rank returned."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddp.errors import UsageError
from pytest_ddp.planning.plan import Refuse, Skip
from pytest_ddp.planning.request import Request
from pytest_ddp.planning.world import World
from pytest_ddp.pool.pool import RankPool
from pytest_ddp.protocol.targets import CALL
from pytest_ddp.remote_calls.objects import Held
from pytest_ddp.remote_calls.pickling import pickle_call, pickle_result, run_call, unpickle_results

if TYPE_CHECKING:
    from pytest_ddp.controller.session import Controller


def rank_callers(controller: "Controller") -> Callable[..., "RankCaller"]:
    """Return the value of the fixture: a function that takes the options of `@distributed` and returns a RankCaller.

    It takes one world size, because a plain test runs once; the default is the largest size in the settings.
    """

    def ddp_ranks(
        world_size: int | None = None,
        *,
        backend: str | None = None,
        device: str | None = None,
        timeout: float | None = None,
        observe: bool | None = None,
        reduction: str | None = None,
    ) -> RankCaller:
        size = max(controller.planner.settings.world_size) if world_size is None else world_size
        if not isinstance(size, int):
            raise UsageError(
                f"ddp_ranks(world_size=...) takes one number of ranks; got {size!r}: call it once for each"
            )
        options: dict[str, Any] = {"backend": backend, "device": device, "timeout": timeout, "observe": observe}
        request = Request.of(size, reduction=reduction, **options)
        decision = controller.planner.plan_request(request)
        if isinstance(decision, Skip):
            pytest.skip(decision.reason)
        if isinstance(decision, Refuse):
            raise UsageError(decision.reason)
        world = decision.world

        def pool() -> RankPool:
            controller.scopes.release()
            return controller.pools.of(world)

        return RankCaller(pool, partial(controller.pools.lease, world), world, decision.timeout)

    return ddp_ranks


@dataclass(frozen=True)
class RankCaller:
    """Runs functions on the ranks of one world; every run has a fresh process group."""

    pool: Callable[[], RankPool]
    lease: Callable[[], AbstractContextManager[World]]
    world: World
    timeout: float

    def run(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> list[Any]:
        """Call `function(*arguments, **keywords)` on every rank.

        Function, arguments and results are pickled with cloudpickle, which can pickle lambdas and closures too.

        Returns:
            The result of each rank, in rank order.

        Raises:
            RankFailure: when a rank raised, died or hung; the report names the root cause.
            PytestDDPError: when a rank skipped and another did not.
        """
        __tracebackhide__ = True
        body = pickle_call(function, arguments, keywords)
        with self.lease() as world:
            outcomes = self.pool().run(world, CALL, body, timeout=self.timeout)
        return unpickle_results(outcomes, self.world)

    def hold(self, factory: Callable[..., Any], *arguments: Any, **keywords: Any) -> Held:
        """Create an object on every rank, `factory(*arguments, **keywords)`, and keep it there for several calls.

        All calls run in one process group. The result is a context manager, see `Held`.

        Raises:
            RankFailure: when a rank could not create the object.
        """
        __tracebackhide__ = True
        return Held(self.pool(), self.lease, self.timeout, pickle_call(factory, arguments, keywords))


def call(body: bytes) -> bytes:
    """Run a pickled call on this rank and return its pickled result; undo what the call changed in the process."""
    from pytest_ddp.rank_session.leaks import Snapshot  # noqa: PLC0415  imports torch, which only ranks may
    from pytest_ddp.rank_session.session import RankPlugin  # noqa: PLC0415  likewise

    before = Snapshot.take()
    try:
        return RankPlugin.current.on_ranks(lambda: pickle_result(run_call(body)))
    finally:
        before.restore()
