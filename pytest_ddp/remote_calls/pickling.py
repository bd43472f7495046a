"""How functions travel to ranks, and what they return travels back."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from pytest_ddp.errors import PytestDDPError, UsageError
from pytest_ddp.outcomes.failure import describe_outcome, raise_for
from pytest_ddp.outcomes.outcome import Outcome, Returned, Skipped
from pytest_ddp.planning.world import World


def dump_call(function: Callable[..., Any], arguments: Sequence[Any], keywords: dict[str, Any]) -> bytes:
    """Return a call pickled; raise UsageError that names what cannot travel."""
    __tracebackhide__ = True
    with _by_value_where_needed(function):
        return pack_call(function, arguments, keywords)


def run_call(body: bytes, *before: Any) -> Any:
    """Run, on a rank, what `dump_call` made, with the arguments `before` in front."""
    from pytest_ddp.rank.worker import SkipRun  # noqa: PLC0415  the rank's side only

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
    raise_for(outcomes, world)
    _agree_on_skipping(outcomes)
    return [cloudpickle.loads(outcome.body) for outcome in outcomes if isinstance(outcome, Returned)]


def _agree_on_skipping(outcomes: Sequence[Outcome]) -> None:
    skipped = [outcome for outcome in outcomes if isinstance(outcome, Skipped)]
    if skipped and len(skipped) == len(outcomes):
        pytest.skip(skipped[0].reason)
    if skipped:
        said = ", ".join(f"rank {outcome.rank} {describe_outcome(outcome)}" for outcome in outcomes)
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


# Pickles what goes to ranks and back; what cannot be pickled is named, with the way around.


def pack_call(function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bytes:
    """Return the call as bytes; raise UsageError that names what cannot travel."""
    __tracebackhide__ = True
    if not callable(function):
        raise UsageError(f"ddp_ranks(...).run takes a function, then its arguments; got {function!r}")
    try:
        body: bytes = cloudpickle.dumps((function, arguments, keywords))
    except Exception as error:  # noqa: BLE001  foreign classes fail to be pickled in any way
        culprit = next(_culprits(function, arguments, keywords), "something in the call")
        raise UsageError(
            f"ddp_ranks(...).run: {culprit} cannot travel to the ranks ({error}): make it there, inside the function"
        ) from None
    return body


def pack_result(result: Any) -> bytes:
    """Return what a function returned as bytes; raise UsageError if it cannot travel."""
    __tracebackhide__ = True
    try:
        body: bytes = cloudpickle.dumps(result)
    except Exception as error:  # noqa: BLE001  as above
        raise UsageError(
            f"what the function returned, {_kind(result)}, cannot travel back from the rank ({error}): "
            "return plain values or tensors, or make your assertions on the rank"
        ) from None
    return body


def _culprits(function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Iterator[str]:
    parts = [(f"argument {number}", value) for number, value in enumerate(arguments, 1)]
    parts += [(f"argument {name!r}", value) for name, value in keywords.items()]
    for name, value in [*parts, *_used_by(function)]:
        if not _travels(value):
            yield f"{name}, {_kind(value)},"


def _used_by(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Yield the variables that a function takes along."""
    try:
        variables = inspect.getclosurevars(function)
    except TypeError:  # no Python function
        return
    for name, value in {**variables.nonlocals, **variables.globals}.items():
        yield f"variable {name!r} that the function uses", value


def _travels(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001  as above
        return False
    return True


def _kind(value: Any) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"a {name}"
