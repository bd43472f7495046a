"""Simulated nodes for the tests of several hosts."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from job_suites import PREAMBLE
from simulated_nodes import Nodes, missing
from torchrun import Job, project


@pytest.fixture(scope="session")
def _nodes_possible() -> None:
    if reason := missing():
        pytest.skip(f"tests of several nodes cannot run: {reason}")


@pytest.fixture
def make_nodes(_nodes_possible: None, tmp_path: Path) -> Iterator[Callable[[int], Nodes]]:
    """Make nodes, which end with the test."""
    with ExitStack() as stack:
        yield lambda count: stack.enter_context(Nodes(count, tmp_path))


@pytest.fixture
def make_job(make_nodes: Callable[[int], Nodes], tmp_path: Path) -> Callable[[int, str], Job]:
    """Make nodes, and a job of torchrun on them that runs a suite; its agents are not started yet."""

    def make(count: int, suite: str) -> Job:
        return Job(make_nodes(count), project(tmp_path / "project", PREAMBLE, suite))

    return make
