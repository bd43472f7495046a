"""The private and undocumented names of Hypothesis that this package uses, and no others.

A new release of Hypothesis that changes one of them breaks this module and no other. All are as in Hypothesis 6.150 to
6.170. tests/unit/given/test_hypothesis_internals.py checks each, and says which feature needs it.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import Verbosity, settings
from hypothesis._settings import local_settings
from hypothesis.control import BuildContext, current_build_context
from hypothesis.core import StateForActualGivenExecution
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.internal.entropy import deterministic_PRNG, get_seeder_and_restorer
from hypothesis.internal.escalation import InterestingOrigin
from hypothesis.reporting import with_reporter
from hypothesis.strategies import SearchStrategy
from hypothesis.strategies._internal.core import RandomSeeder
from hypothesis.strategies._internal.random import HypothesisRandom

DRAWS_IN_BODY = (ConjectureData, HypothesisRandom)  # the values of st.data() and st.randoms() hold one of these


def seed_of_random_module(value: object) -> int | None:
    """Return the seed in a value of `st.random_module()`; None for another value."""
    return value.seed if isinstance(value, RandomSeeder) else None


def current_choices() -> object:
    """Return the choices of which the current example is made, equal for equal examples; empty if it is an @example."""
    return current_build_context().data.choices


def draw(strategy: SearchStrategy[Any]) -> Any:
    """Draw from a strategy in the current example."""
    return current_build_context().data.draw(strategy)


def add_to_key(test: Any, text: str) -> None:
    """Let a test whose source is that of others have failures of its own in the database."""
    test._hypothesis_internal_add_digest = text.encode()


def is_final_example() -> bool:
    """Whether Hypothesis runs a failing example a last time, to show it."""
    return current_build_context().is_final


def drawn_names(handle: Any) -> Collection[str]:
    """Return the names of the arguments that `@given` draws, of the attribute `hypothesis` of a test."""
    names: Collection[str] = handle._given_kwargs
    return names


@contextmanager
def without_tracing() -> Iterator[None]:
    """Keep Hypothesis from explaining failures by the lines that were executed in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StateForActualGivenExecution, "_should_trace", lambda _: False)
        yield


def origin_of(error: BaseException) -> str:
    """Return the type and place by which Hypothesis tells the bug apart from others."""
    return str(InterestingOrigin.from_exception(error))


class RunningExample:
    """An example in which nothing can be drawn; keeps `notes`, `events` and `targets` of the test."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._data = ConjectureData.for_choices(())

    @property
    def events(self) -> dict[str, Any]:
        """The payload of each `event`."""
        return dict(self._data.events)

    @property
    def targets(self) -> dict[str, float]:
        """The value of each `target`, by label."""
        return {label: float(value) for label, value in self._data.target_observations.items()}

    @contextmanager
    def running(self, test: Any, seed: int | None) -> Iterator[None]:
        """Run the body of a test as Hypothesis does; `seed` is that of `st.random_module()`."""
        quiet = settings(test._hypothesis_internal_use_settings, verbosity=Verbosity.normal)
        with (
            local_settings(quiet),
            deterministic_PRNG(),
            with_reporter(lambda text: self.notes.append(str(text))),
            BuildContext(self._data, is_final=True, wrapped_test=test),
        ):
            if seed is not None:
                get_seeder_and_restorer(seed)[0]()
            yield
