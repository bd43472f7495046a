"""Simulated nodes for the tests of several hosts."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from simulated_nodes import Nodes, missing


@pytest.fixture(scope="session")
def _nodes_possible() -> None:
    if reason := missing():
        pytest.skip(f"tests of several nodes cannot run: {reason}")


@pytest.fixture
def make_nodes(_nodes_possible: None, tmp_path: Path) -> Iterator[Callable[[int], Nodes]]:
    """Make nodes, which end with the test."""
    with ExitStack() as stack:
        yield lambda count: stack.enter_context(Nodes(count, tmp_path))
