"""Shared by all tests: pytester, and warm ranks without pytest."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from pytest_ddp.pool.pool import RankPool

pytest_plugins = ["pytester"]
# Hypothesis's as it is here or on a CI machine, but for what would make a verdict depend on how busy the machine is.
usual = settings.get_profile(settings.get_current_profile_name())
settings.register_profile("unhurried", usual, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
# They would change every inner run by being there; the tests about them load them.
WITHOUT_NEIGHBOURS = "-p no:asyncio -p no:randomly -p no:rerunfailures"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU where there is none."""
    if item.get_closest_marker("gpu"):
        import torch.cuda  # noqa: PLC0415  pytest starts without torch

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A project of its own, in which no plugin shuffles."""
    monkeypatch.setenv("PYTEST_ADDOPTS", WITHOUT_NEIGHBOURS)
    return pytester


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """A pool of warm ranks, as the core offers it."""
    with RankPool() as pool:
        yield pool
