"""How drawn arguments travel to the ranks."""

import io
from dataclasses import dataclass
from typing import Any

import cloudpickle
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.strategies._internal.core import RandomSeeder
from hypothesis.strategies._internal.random import HypothesisRandom

from pytest_ddp.errors import UsageError


@dataclass(frozen=True)
class Drawn:
    """What was drawn for an example.

    Attributes:
        arguments: pickled.
        seed: of `st.random_module()`, if it was drawn: what it does to a process when drawn, ranks do themselves.
    """

    arguments: bytes
    seed: int | None = None


def dump(arguments: dict[str, Any]) -> bytes:
    """Return the arguments as a `Drawn`, pickled.

    Classes and functions of the test's modules go by name: the ranks have collected the same files.

    Raises:
        UsageError: for an argument that draws in the test's body, or that cannot be pickled.
    """
    try:
        drawn: bytes = cloudpickle.dumps(_pickle(arguments))
    except Exception:  # of any kind: the objects are foreign
        for name, value in arguments.items():
            _check(name, value)
        raise
    return drawn


def _check(name: str, value: Any) -> None:
    try:
        _pickle(value)
    except _DrawsLaterError:
        raise UsageError(
            f"the argument {name!r} draws while the test runs, but the test runs on the ranks and Hypothesis in the "
            "controller: draw everything before, with @st.composite or .flatmap() in place of st.data(), "
            "a seed in place of st.randoms(), and one of several functions of yours in place of st.functions()"
        ) from None
    except Exception as error:
        raise UsageError(
            f"the argument {name!r} (a {type(value).__name__}) cannot be sent to the ranks: "
            f"{type(error).__name__}: {error}; draw what can be pickled and make the rest of it in the test"
        ) from error


class _DrawsLaterError(Exception):
    """An argument holds on to the choices of the example."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    seed: int | None = None

    def reducer_override(self, found: Any) -> Any:
        if isinstance(found, ConjectureData | HypothesisRandom):
            raise _DrawsLaterError
        if isinstance(found, RandomSeeder):
            self.seed = found.seed
        return super().reducer_override(found)


def _pickle(value: Any) -> Drawn:
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(value)
    return Drawn(file.getvalue(), pickler.seed)
