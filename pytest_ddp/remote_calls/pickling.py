"""Calls and results, pickled with cloudpickle. An error names the value that cannot be pickled."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from pytest_ddp.errors import PytestDDPError, UsageError
from pytest_ddp.outcomes.failure import describe_outcome, raise_for
from pytest_ddp.outcomes.outcome import Outcome, Returned, Skipped
from pytest_ddp.planning.world import World


def pickle_call(function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bytes:
    """Return the call as bytes; raise UsageError that names the value that cannot be pickled."""
    __tracebackhide__ = True
    if not callable(function):
        raise UsageError(f"ddp_ranks(...).run takes a function, then its arguments; got {function!r}")
    with ExitStack() as registered:
        for module in _unimportable_modules(function):
            cloudpickle.register_pickle_by_value(module)
            registered.callback(cloudpickle.unregister_pickle_by_value, module)
        try:
            body: bytes = cloudpickle.dumps((function, arguments, keywords))
        except Exception as error:  # noqa: BLE001  pickling a foreign object may raise anything
            culprit = next(_culprits(function, arguments, keywords), "a part of the call")
            raise UsageError(
                f"ddp_ranks(...).run: {culprit} cannot be sent to the ranks ({error}): create it inside the function"
            ) from None
    return body


def run_call(body: bytes, *before: Any) -> Any:
    """Run a call from `pickle_call` on this rank, with the arguments `before` in front; return its result."""
    from pytest_ddp.rank.worker import SkipRun  # noqa: PLC0415  on ranks only

    function, arguments, keywords = cloudpickle.loads(body)
    try:
        return function(*before, *arguments, **keywords)
    except pytest.skip.Exception as skip:
        raise SkipRun(skip.msg or "") from None


def pickle_result(result: Any) -> bytes:
    """Return the result of a function as bytes; raise UsageError if it cannot be pickled."""
    __tracebackhide__ = True
    try:
        body: bytes = cloudpickle.dumps(result)
    except Exception as error:  # noqa: BLE001  as above
        raise UsageError(
            f"the result of the function, {_kind(result)}, cannot be sent back from the rank ({error}): "
            "return plain values or tensors, or make your assertions on the rank"
        ) from None
    return body


def unpickle_results(outcomes: Sequence[Outcome], world: World) -> list[Any]:
    """Return the results of all ranks, in rank order; skip the test if every rank skipped.

    Raises:
        RankFailure: when a rank failed.
        PytestDDPError: when a rank skipped and another did not.
    """
    __tracebackhide__ = True
    raise_for(outcomes, world)
    skipped = [outcome for outcome in outcomes if isinstance(outcome, Skipped)]
    if skipped and len(skipped) == len(outcomes):
        pytest.skip(skipped[0].reason)
    if skipped:
        each = ", ".join(f"rank {outcome.rank} {describe_outcome(outcome)}" for outcome in outcomes)
        raise PytestDDPError(f"the ranks disagree: {each}; skip on all ranks or on none")
    return [cloudpickle.loads(outcome.body) for outcome in outcomes if isinstance(outcome, Returned)]


def _unimportable_modules(function: Callable[..., Any]) -> list[ModuleType]:
    """Return the modules of the function's package that ranks cannot import, as under `--import-mode=importlib`."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__module__", None) or ""
    module = sys.modules.get(name)
    if module is None or _is_importable(module):
        return []
    top = name.partition(".")[0]
    package = [found for name, found in sys.modules.copy().items() if name == top or name.startswith(f"{top}.")]
    return [found for found in package if not _is_importable(found)]


def _is_importable(module: ModuleType) -> bool:
    """Whether `import` in another process finds the same file that this module was loaded from."""
    name = module.__name__
    parent = sys.modules.get(name.rpartition(".")[0])
    if "." in name and (parent is None or not _is_importable(parent)):
        return False
    path = getattr(parent, "__path__", None)
    specs = (finder.find_spec(name, path) for finder in sys.meta_path)
    found = next((spec for spec in specs if spec is not None), None)
    file = getattr(module, "__file__", None)  # None for packages without __init__.py, and for built-in modules
    return found is not None and file in {None, found.origin}


def _culprits(function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Iterator[str]:
    """Yield the name and type of each value in a call that cannot be pickled."""
    values = [(f"argument {number}", value) for number, value in enumerate(arguments, 1)]
    values += [(f"argument {name!r}", value) for name, value in keywords.items()]
    for name, value in [*values, *_variables(function)]:
        try:
            cloudpickle.dumps(value)
        except Exception:  # noqa: BLE001  as above
            yield f"{name}, {_kind(value)},"


def _variables(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Yield the outer variables that a function uses, which are pickled with it."""
    try:
        variables = inspect.getclosurevars(function)
    except TypeError:  # not a Python function
        return
    for name, value in {**variables.nonlocals, **variables.globals}.items():
        yield f"variable {name!r} that the function uses", value


def _kind(value: Any) -> str:
    kind = type(value)
    return f"a {kind.__qualname__}" if kind.__module__ == "builtins" else f"a {kind.__module__}.{kind.__qualname__}"
