"""How drawn arguments travel to the ranks."""

import io
from typing import Any

import cloudpickle
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.strategies._internal.random import HypothesisRandom

from pytest_ddp.errors import UsageError


def dump(arguments: dict[str, Any]) -> bytes:
    """Return the arguments pickled.

    Classes and functions of the test's modules go by name: the ranks have collected the same files.

    Raises:
        UsageError: for an argument that draws in the test's body, or that cannot be pickled.
    """
    try:
        return _pickle(arguments)
    except Exception:  # of any kind: the objects are foreign
        for name, value in arguments.items():
            _check(name, value)
        raise


def _check(name: str, value: Any) -> None:
    try:
        _pickle(value)
    except _DrawsLaterError:
        raise UsageError(
            f"the argument {name!r} draws while the test runs, but the test runs on the ranks and Hypothesis in the "
            "controller: draw everything before, with @st.composite or .flatmap() in place of st.data(), "
            "and a seed in place of st.randoms()"
        ) from None
    except Exception as error:
        raise UsageError(
            f"the argument {name!r} (a {type(value).__name__}) cannot be sent to the ranks: "
            f"{type(error).__name__}: {error}; draw what can be pickled and make the rest of it in the test"
        ) from error


class _DrawsLaterError(Exception):
    """An argument holds on to the choices of the example."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    def reducer_override(self, found: Any) -> Any:
        if isinstance(found, ConjectureData | HypothesisRandom):
            raise _DrawsLaterError
        return super().reducer_override(found)


def _pickle(value: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()
