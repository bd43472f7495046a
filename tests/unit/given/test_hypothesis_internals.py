"""Hypothesis's private names are still there, and do what `given.hypothesis_internals` needs of them.

A check is named as the function of the adapter that it calls. Its docstring names what is private and what breaks
without it.
"""

import random
from inspect import getmembers

import pytest
from hypothesis import assume, event, example, given, note, settings, target
from hypothesis import strategies as st
from hypothesis.control import current_build_context
from hypothesis.internal.reflection import function_digest

from pytest_ddp.given import hypothesis_internals as internals

quick = settings(max_examples=20, database=None, deadline=None, derandomize=True)


def _drawn(strategy):
    """Return a value that a strategy draws in a test, before the test ends."""
    values = []

    @settings(quick, max_examples=1)
    @given(strategy)
    def run(value):
        values.append(value)

    run()
    return values[0]


def DRAWS_IN_BODY():  # noqa: N802  as in the adapter
    """ConjectureData, HypothesisRandom: an argument that draws in the test's body hangs or differs between ranks."""
    assert isinstance(_drawn(st.randoms(use_true_random=False)), internals.DRAWS_IN_BODY)
    assert isinstance(_drawn(st.data()).conjecture_data, internals.DRAWS_IN_BODY)


def seed_of_random_module():
    """RandomSeeder.seed: ranks do not seed themselves with what `st.random_module()` drew."""
    drawn = _drawn(st.random_module())
    assert internals.seed_of_random_module(drawn) == drawn.seed
    assert internals.seed_of_random_module(3) is None


def current_choices():
    """BuildContext.data.choices: an example that failed is not recognised when Hypothesis runs it again."""
    seen = {}

    @quick
    @given(st.integers())
    def run(number):
        assert seen.setdefault(number, internals.current_choices()) == internals.current_choices() != ()

    @settings(quick, max_examples=1)
    @example(3)
    @given(st.integers())
    def run_explicit(number):
        if number == 3:
            assert not internals.current_choices()

    run()
    run_explicit()
    assert len(set(seen.values())) == len(seen) > 1


def is_final_example():
    """BuildContext.is_final: each example that is tried while Hypothesis shrinks prints its output."""
    final = []

    @quick
    @given(st.integers())
    def run(_):
        final.append(internals.is_final_example())
        raise ValueError("always")

    with pytest.raises(ValueError, match="always"):
        run()
    assert final[-1]
    assert not all(final)


def drawn_names():
    """The attribute `hypothesis._given_kwargs` of tests: fixtures are sent to the ranks as if they were drawn."""

    @given(number=st.integers())
    def run(number, fixture): ...

    assert set(internals.drawn_names(run.hypothesis)) == {"number"}


def without_tracing(monkeypatch):
    """StateForActualGivenExecution._should_trace: failures are explained by lines of pytest-ddp."""
    traced = []
    core = internals.StateForActualGivenExecution
    original = core._should_trace
    monkeypatch.setattr(core, "_should_trace", lambda self, code: traced.append(code) or original(self, code))

    @quick
    @given(st.integers())
    def run(number):
        if number > 3:
            raise ValueError(number)

    with internals.without_tracing(), pytest.raises(ValueError, match="4"):
        run()
    assert not traced


def draw():
    """ConjectureData.draw: `schedule=schedules()` cannot be added to what `@given` draws."""
    drawn = []

    @quick
    @given(st.none())
    def run(_):
        drawn.append(internals.draw(st.just(3)))

    run()
    assert set(drawn) == {3}


def add_to_key():
    """_hypothesis_internal_add_digest: the failures of different tests with `schedule=` are mixed up."""

    def test(): ...

    before = function_digest(test)
    internals.add_to_key(test, "tests/test_x.py::test_x")
    assert function_digest(test) != before


def origin_of():
    """InterestingOrigin.from_exception: different bugs are taken for one, and one of them is not reported."""

    def origin(function, name):
        with pytest.raises(AttributeError) as raised:
            function(name)
        return internals.origin_of(raised.value)

    def here(name):
        return getattr(internals, name)

    def there(name):
        return getattr(internals, name)

    assert origin(here, "one") == origin(here, "two")
    assert origin(here, "one").startswith("AttributeError at ")
    assert origin(here, "one") != origin(there, "one")


def RunningExample():  # noqa: N802  as in the adapter
    """BuildContext and others: `note`, `event`, `target` and `assume` do not work on ranks."""

    @given(st.integers())
    def test(_): ...

    started = internals.RunningExample()
    with started.running(test, seed=5):
        note("a note")
        event("an event", 3)
        target(0.5, label="a target")
        assume(True)
        drawn = random.random()  # noqa: S311  of which the example decides
        assert current_build_context().is_final
    assert (started.notes, started.events, started.targets) == (["a note"], {"an event": 3}, {"a target": 0.5})
    assert drawn == random.Random(5).random()  # noqa: S311


NAMES = [name for name, member in getmembers(internals) if getattr(member, "__module__", "") == internals.__name__]
CHECKS = {globals()[name].__name__: globals()[name] for name in [*NAMES, "DRAWS_IN_BODY"] if name in globals()}


def test_every_name_of_the_adapter_has_a_check():
    assert [name for name in NAMES if name not in globals()] == []


@pytest.mark.parametrize("name", CHECKS)
def test_hypothesis_still_has(name, still_works):
    still_works("hypothesis", internals, CHECKS[name])
