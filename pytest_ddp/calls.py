"""`ddp_ranks`: plain tests call functions on ranks and get what each rank returned."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from pytest_ddp.errors import PytestDDPError
from pytest_ddp.failure import describe, raise_for
from pytest_ddp.outcome import Outcome, Returned, Skipped
from pytest_ddp.ranks import Ranks
from pytest_ddp.travel import pack_call, pack_result
from pytest_ddp.world import World

_TARGET = "pytest_ddp.calls:call"


@dataclass(frozen=True)
class RankCaller:
    """Runs functions on the ranks of one world; every run has a fresh process group."""

    ranks: Callable[[], Ranks]
    world: World
    timeout: float

    def run(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> list[Any]:
        """Call `function(*arguments, **keywords)` on every rank.

        Function, arguments and results are pickled (with cloudpickle, so lambdas and closures travel too).

        Returns:
            What each rank returned, in rank order.

        Raises:
            RankFailure: when a rank raised, died or hung; the report names the root cause.
            UsageError: when the function or an argument cannot be pickled.
            PytestDDPError: when some ranks skipped and others did not.
        """
        __tracebackhide__ = True
        with _by_value_where_needed(function):
            body = pack_call(function, arguments, keywords)
        outcomes = self.ranks().run(self.world, _TARGET, body, timeout=self.timeout)
        raise_for(outcomes, self.world)
        _agree_on_skipping(outcomes)
        return [cloudpickle.loads(outcome.body) for outcome in outcomes if isinstance(outcome, Returned)]


def call(body: bytes) -> bytes:
    """Be called on a rank: run the pickled function and pickle what it returns."""
    from pytest_ddp.worker import SkipRun  # noqa: PLC0415  the rank's side only

    function, arguments, keywords = cloudpickle.loads(body)
    try:
        result = function(*arguments, **keywords)
    except pytest.skip.Exception as skip:
        raise SkipRun(skip.msg or "") from None
    return pack_result(result)


def _agree_on_skipping(outcomes: list[Outcome]) -> None:
    skipped = [outcome for outcome in outcomes if isinstance(outcome, Skipped)]
    if len(skipped) == len(outcomes):
        pytest.skip(skipped[0].reason)
    if skipped:
        said = ", ".join(f"rank {outcome.rank} {describe(outcome)}" for outcome in outcomes)
        raise PytestDDPError(f"the ranks disagree: {said}; skip on all ranks or on none")


@contextmanager
def _by_value_where_needed(function: Callable[..., Any]) -> Iterator[None]:
    """Pickle the function's module by value if ranks cannot import it (`--import-mode=importlib`)."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or _importable(module):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _importable(module: ModuleType) -> bool:
    """Whether `import` in another process finds the very file that this module was loaded from."""
    file = getattr(module, "__file__", None)
    if file is None:  # built-in, or __main__ typed in: cloudpickle knows what to do
        return True
    parent, _, name = module.__name__.rpartition(".")
    path = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    found = None if parent and path is None else PathFinder.find_spec(name, path)
    return found is not None and found.origin == file
