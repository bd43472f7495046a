"""Runs a suite of distributed tests in a project of its own."""

import functools
import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings
from inner_suite import run_suite  # noqa: F401  a fixture

HYPOTHESIS = """
from dataclasses import dataclass
from hypothesis import HealthCheck, Phase, assume, event, example, given, note, reject, seed, settings, target
from hypothesis import strategies as st

fast = settings(database=None, deadline=None, derandomize=True)  # what is drawn is not left to luck

"""


@pytest.fixture(scope="session", autouse=True)
def light_garbage_collections() -> Iterator[None]:
    """Every inner run ends with five collections of garbage: let them skip what is here to stay."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def run_given(run_suite, monkeypatch):  # noqa: F811  pytest hands it in
    """Run a suite of Hypothesis tests as on a desk: on a CI machine it draws from one seed and has no database."""
    before = settings.get_current_profile_name()
    settings.load_profile("default")
    monkeypatch.setattr("hypothesis.core.global_force_seed", None)  # an inner run's --hypothesis-seed would outlive it

    @functools.wraps(run_suite)
    def run(source: str, *args: str, **keywords):
        indent = " " * (len(source) - len(source.lstrip()) - 1)
        return run_suite("".join(f"{indent}{line}\n" for line in HYPOTHESIS.splitlines()) + source, *args, **keywords)

    yield run
    settings.load_profile(before)
