"""Shared by all tests: pytester, and warm ranks without pytest."""

from collections.abc import Iterator

import pytest

from pytest_ddp.ranks import Ranks

pytest_plugins = ["pytester"]


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """A pool of warm ranks, as the core offers it."""
    with Ranks() as pool:
        yield pool
