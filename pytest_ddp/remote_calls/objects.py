"""Objects that stay on ranks between calls, in one process group: for state machine tests, for example."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, Self

from pytest_ddp.errors import PytestDDPError
from pytest_ddp.outcomes.failure import RankFailure
from pytest_ddp.planning.world import World
from pytest_ddp.pool.pool import RankPool
from pytest_ddp.protocol.targets import MAKE, RELEASE, USE
from pytest_ddp.remote_calls.pickling import pickle_call, pickle_result, run_call, unpickle_results

_CLOSED = "it was closed"
_held = threading.local()  # on a rank, which is a thread if it is simulated: the object


class Held:
    """An object on every rank of one process group, created by `RankCaller.hold`.

    Use it as a context manager, or call `close`. It ends when a call fails, or when the ranks run anything else.
    """

    def __init__(
        self, pool: RankPool, lease: Callable[[], AbstractContextManager[World]], timeout: float, factory: bytes
    ) -> None:
        __tracebackhide__ = True
        self._pool = pool
        self._timeout = timeout
        self._ended_because = ""
        self._resources = ExitStack()
        self._world = self._resources.enter_context(lease())
        self._group = self._resources.enter_context(pool.group(self._world))
        self._name = self._group.name
        try:
            self._run(MAKE, factory)
        except BaseException:
            self.close()
            raise

    def run(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> list[Any]:
        """Call `function(object, *arguments, **keywords)` on every rank, with the object of that rank.

        Returns:
            The result of each rank, in rank order.

        Raises:
            RankFailure: when a rank raised, died or hung; this ends the object.
            PytestDDPError: when the object has ended, or when a rank skipped and another did not.
        """
        __tracebackhide__ = True
        if not self._ended_because and self._pool.latest_group != self._name:
            used = "the same ranks have run something else since"
            self._ended_because = used if self._pool.latest_group else "their processes have ended"
        if self._ended_because:
            raise PytestDDPError(
                f"the ranks no longer hold the object: {self._ended_because}; create a new object with hold()"
            )
        return self._run(USE, pickle_call(function, arguments, keywords))

    def close(self) -> None:
        """Release the object and its process group."""
        if self._pool.latest_group == self._name and self._ended_because != _CLOSED:
            self._group.run(RELEASE, timeout=self._timeout)
        self._ended_because = _CLOSED
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, target: str, body: bytes) -> list[Any]:
        __tracebackhide__ = True
        try:
            return unpickle_results(self._group.run(target, body, timeout=self._timeout), self._world)
        except RankFailure as failure:
            self._ended_because = f"an earlier call failed ({str(failure).partition(chr(10))[0]})"
            raise


def make(factory: bytes) -> bytes:
    """Create the object on this rank."""
    return _on_ranks(partial(_make, factory))


def use(call: bytes) -> bytes:
    """Call a function with the object of this rank."""
    return _on_ranks(lambda: pickle_result(run_call(call, _held.object)))


def release(_: bytes) -> bytes:
    """Release the object of this rank."""
    return _on_ranks(_release)


def _make(factory: bytes) -> bytes:
    _held.object = run_call(factory)
    return pickle_result(None)


def _release() -> bytes:
    vars(_held).clear()
    return pickle_result(None)


def _on_ranks(function: Callable[[], bytes]) -> bytes:
    from pytest_ddp.rank_session.session import RankPlugin  # noqa: PLC0415  imports torch, which only ranks may

    plugin = getattr(RankPlugin, "current", None)  # the ranks of a pool without a pytest session have none
    return plugin.on_ranks(function) if plugin else function()
