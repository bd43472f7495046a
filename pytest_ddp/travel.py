"""How functions travel to ranks, and what they return travels back."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from pytest_ddp.bug import raise_for
from pytest_ddp.errors import PytestDDPError
from pytest_ddp.failure import describe
from pytest_ddp.outcome import Outcome, Returned, Skipped
from pytest_ddp.world import World


def dump_call(function: Callable[..., Any], arguments: Sequence[Any], keywords: dict[str, Any]) -> bytes:
    """Return a call pickled."""
    with _by_value_where_needed(function):
        dumped: bytes = cloudpickle.dumps((function, arguments, keywords))
    return dumped


def run_call(body: bytes, *before: Any) -> Any:
    """Run, on a rank, what `dump_call` made, with the arguments `before` in front."""
    from pytest_ddp.worker import SkipRun  # noqa: PLC0415  the rank's side only

    function, arguments, keywords = cloudpickle.loads(body)
    try:
        return function(*before, *arguments, **keywords)
    except pytest.skip.Exception as skip:
        raise SkipRun(skip.msg or "") from None


def dump_result(result: Any) -> bytes:
    """Return what a call returned, pickled."""
    dumped: bytes = cloudpickle.dumps(result)
    return dumped


def results(outcomes: Sequence[Outcome], world: World) -> list[Any]:
    """Return what every rank returned, in rank order; skip if all skipped.

    Raises:
        RankFailure: when a rank failed.
        PytestDDPError: when some ranks skipped and others did not.
    """
    __tracebackhide__ = True
    raise_for(outcomes, world)
    _agree_on_skipping(outcomes)
    return [cloudpickle.loads(outcome.body) for outcome in outcomes if isinstance(outcome, Returned)]


def _agree_on_skipping(outcomes: Sequence[Outcome]) -> None:
    skipped = [outcome for outcome in outcomes if isinstance(outcome, Skipped)]
    if skipped and len(skipped) == len(outcomes):
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
