"""Objects that live on ranks between calls, in one process group: what a state machine tests, for instance."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Self

from pytest_ddp.errors import PytestDDPError
from pytest_ddp.outcomes.failure import RankFailure
from pytest_ddp.planning.world import World
from pytest_ddp.pool.pool import RankPool
from pytest_ddp.protocol.targets import MAKE, RELEASE, USE
from pytest_ddp.remote_calls.pickling import dump_call, pack_result, results, run_call

_ELSEWHERE = "the same ranks have run something else meanwhile"
_ENDED = "their processes have ended"
_held: list[Any] = []
Lease = Callable[[], AbstractContextManager[World]]


class Held:
    """An object on every rank of one process group, made by `RankCaller.hold`.

    Use it as a context manager, or call `close`. It is over as soon as the same warm ranks run anything else.
    """

    def __init__(self, ranks: RankPool, lease: Lease, timeout: float, factory: bytes) -> None:
        __tracebackhide__ = True
        self._ranks = ranks
        self._timeout = timeout
        self._over = ""
        self._open = ExitStack()
        self._world = self._open.enter_context(lease())
        self._group = self._open.enter_context(ranks.group(self._world))
        self._name = self._group.name
        try:
            self._run(MAKE, factory)
        except BaseException:
            self.close()
            raise

    def run(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> list[Any]:
        """Call `function(object, *arguments, **keywords)` on every rank with the object that the rank holds.

        Returns:
            What each rank returned, in rank order.

        Raises:
            RankFailure: when a rank raised, died or hung; the object is then not used any more.
            PytestDDPError: when the object is not there any more, or when some ranks skipped and others did not.
        """
        __tracebackhide__ = True
        if not self._over and self._ranks.latest_group != self._name:
            self._over = _ELSEWHERE if self._ranks.latest_group else _ENDED
        if self._over:
            raise PytestDDPError(f"these ranks hold nothing any more: {self._over}; make a new object with hold()")
        return self._run(USE, dump_call(function, arguments, keywords))

    def close(self) -> None:
        """Let go of the object and of its process group."""
        if self._ranks.latest_group == self._name and self._over != "it was closed":
            self._group.run(RELEASE, timeout=self._timeout)
        self._over = "it was closed"
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, target: str, body: bytes) -> list[Any]:
        __tracebackhide__ = True
        try:
            return results(self._group.run(target, body, timeout=self._timeout), self._world)
        except RankFailure as failure:
            self._over = f"an earlier call failed ({str(failure).partition(chr(10))[0]})"
            raise


def make(factory: bytes) -> bytes:
    """Make the object on this rank."""
    _held[:] = [run_call(factory)]
    return pack_result(None)


def use(call: bytes) -> bytes:
    """Call a function with the object of this rank."""
    return pack_result(run_call(call, _held[0]))


def release(_: bytes) -> bytes:
    """Let go of the object of this rank."""
    _held.clear()
    return pack_result(None)
