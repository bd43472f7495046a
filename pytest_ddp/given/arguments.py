"""Drawn arguments, pickled for the ranks."""

import io
from typing import Any

import cloudpickle

from pytest_ddp.errors import UsageError
from pytest_ddp.given.hypothesis_internals import DRAWS_IN_BODY, seed_of_random_module


def pickle_arguments(arguments: dict[str, Any]) -> bytes:
    """Return a pickle of two values: the arguments, pickled, and the seed that `st.random_module()` drew, or None.

    Each rank seeds itself. Classes and functions of test modules are pickled by name: ranks collect the same files.

    Raises:
        UsageError: for an argument that draws inside the test's body, or that cannot be pickled.
    """
    try:
        drawn: bytes = cloudpickle.dumps(_pickle(arguments))
    except Exception:  # pickling a foreign object may raise anything
        for name, value in arguments.items():
            _check(name, value)
        raise
    return drawn


def _check(name: str, value: Any) -> None:
    try:
        _pickle(value)
    except _DrawsInBodyError:
        raise UsageError(
            f"the argument {name!r} draws while the test runs, but the test runs on the ranks and Hypothesis in the "
            "controller: draw everything before the test, with @st.composite or .flatmap() in place of st.data(), "
            "a seed in place of st.randoms(), and one of several functions of yours in place of st.functions()"
        ) from None
    except Exception as error:
        raise UsageError(
            f"the argument {name!r} (a {type(value).__name__}) cannot be sent to the ranks: {type(error).__name__}: "
            f"{error}; draw values that can be pickled, and create the rest from them in the test"
        ) from error


class _DrawsInBodyError(Exception):
    """An argument refers to the choices of the example."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    seed: int | None = None

    def reducer_override(self, found: Any) -> Any:
        if isinstance(found, DRAWS_IN_BODY):
            raise _DrawsInBodyError
        if (seed := seed_of_random_module(found)) is not None:
            self.seed = seed
        return super().reducer_override(found)


def _pickle(value: Any) -> tuple[bytes, int | None]:
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return file.getvalue(), pickler.seed
