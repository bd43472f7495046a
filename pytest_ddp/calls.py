"""`ddp_ranks`: plain tests call functions on ranks and get what each rank returned."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from pytest_ddp.errors import PytestDDPError
from pytest_ddp.failure import describe, raise_for
from pytest_ddp.outcome import Outcome, Returned, Skipped
from pytest_ddp.ranks import Ranks
from pytest_ddp.world import World

_TARGET = "pytest_ddp.calls:call"


@dataclass(frozen=True)
class RankCaller:
    """Runs functions on the ranks of one world; every run has a fresh process group."""

    ranks: Callable[[], Ranks]
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
        with _by_value_where_needed(function):
            body = cloudpickle.dumps((function, arguments, keywords))
        with self.lease() as world:
            outcomes = self.ranks().run(world, _TARGET, body, timeout=self.timeout)
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
        raise SkipRun(skip.msg) from None
    dumped: bytes = cloudpickle.dumps(result)
    return dumped


def _agree_on_skipping(outcomes: list[Outcome]) -> None:
    skipped = [outcome for outcome in outcomes if isinstance(outcome, Skipped)]
    if len(skipped) == len(outcomes):
        pytest.skip(skipped[0].reason)
    if skipped:
        said = ", ".join(f"rank {outcome.rank} {describe(outcome)}" for outcome in outcomes)
        raise PytestDDPError(f"the ranks disagree: {said}; skip on all ranks or on none")


@contextmanager
def _by_value_where_needed(function: Callable[..., Any]) -> Iterator[None]:
    """Pickle by value what ranks cannot import of the function's package (`--import-mode=importlib`)."""
    with ExitStack() as registered:
        for module in _beside(function):
            if not _importable(module):
                cloudpickle.register_pickle_by_value(module)
                registered.callback(cloudpickle.unregister_pickle_by_value, module)
        yield


def _beside(function: Callable[..., Any]) -> list[ModuleType]:
    """Return the function's module; if that cannot be imported, then all loaded modules of its top-level package."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__module__", None) or ""
    module = sys.modules.get(name)
    if module is None or _importable(module):
        return []
    top = name.partition(".")[0]
    return [module for name, module in sys.modules.copy().items() if name == top or name.startswith(f"{top}.")]


def _importable(module: ModuleType) -> bool:
    """Whether `import` in another process finds the very file that this module was loaded from."""
    name = module.__name__
    parent = sys.modules.get(name.rpartition(".")[0])
    if "." in name and (parent is None or not _importable(parent)):
        return False
    path = getattr(parent, "__path__", None)
    specs = (finder.find_spec(name, path) for finder in sys.meta_path)
    found = next((spec for spec in specs if spec is not None), None)
    file = getattr(module, "__file__", None)  # None for packages without __init__.py, and for built-in modules
    return found is not None and file in {None, found.origin}
