"""How functions travel to ranks, and what they return travels back."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from pytest_ddp.bug import raise_as_bug
from pytest_ddp.errors import PytestDDPError
from pytest_ddp.failure import describe
from pytest_ddp.outcome import Outcome, Returned, Skipped
from pytest_ddp.packing import pack_call
from pytest_ddp.world import World


def dump_call(function: Callable[..., Any], arguments: Sequence[Any], keywords: dict[str, Any]) -> bytes:
    """Return a call pickled; raise UsageError that names what cannot travel."""
    __tracebackhide__ = True
    with _by_value_where_needed(function):
        return pack_call(function, arguments, keywords)


def run_call(body: bytes, *before: Any) -> Any:
    """Run, on a rank, what `dump_call` made, with the arguments `before` in front."""
    from pytest_ddp.worker import SkipRun  # noqa: PLC0415  the rank's side only

    function, arguments, keywords = cloudpickle.loads(body)
    try:
        return function(*before, *arguments, **keywords)
    except pytest.skip.Exception as skip:
        raise SkipRun(skip.msg or "") from None


def results(outcomes: Sequence[Outcome], world: World) -> list[Any]:
    """Return what every rank returned, in rank order; skip if all skipped.

    Raises:
        RankFailure: when a rank failed.
        PytestDDPError: when some ranks skipped and others did not.
    """
    __tracebackhide__ = True
    raise_as_bug(outcomes, world)
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
