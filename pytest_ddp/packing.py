"""Pickles what goes to ranks and back; what cannot be pickled is named, with the way around."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle

from pytest_ddp.errors import UsageError


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
