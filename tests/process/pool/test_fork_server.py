"""The fork server starts early, and again if its modules or environment have changed before it has ranks."""

import sys

import hypothesis
import pytest

from pytest_ddp.outcomes.outcome import Returned
from pytest_ddp.planning.world import World
from pytest_ddp.pool.launcher import ForkLauncher
from pytest_ddp.pool.pool import RankPool

PRELOAD = ("torch",)


@pytest.fixture
def launcher():
    launcher = ForkLauncher(PRELOAD)
    yield launcher
    launcher.close()


def start(launcher: ForkLauncher) -> int:
    """Start the server; return its process id."""
    launcher.start_server()
    assert launcher._server is not None
    return launcher._server.pid


def test_a_second_start_changes_nothing(launcher):
    assert start(launcher) == start(launcher)


def test_it_starts_again_with_another_environment(launcher, monkeypatch):
    before = start(launcher)
    monkeypatch.setenv("READ_WHEN_TORCH_IS_IMPORTED", "1")
    assert start(launcher) != before


def test_it_starts_again_once_hypothesis_is_imported(launcher, monkeypatch):
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "hypothesis", raising=False)
        before = start(launcher)
    monkeypatch.setitem(sys.modules, "hypothesis", hypothesis)
    assert start(launcher) != before


def test_it_does_not_start_again_once_it_has_ranks(launcher, monkeypatch):
    server = start(launcher)
    with RankPool(launcher) as pool:
        monkeypatch.setenv("SET_BY_A_TEST", "1")
        outcomes = pool.run(World(1), "pytest_ddp.rank.worker:joined", timeout=60)
        assert [type(outcome) for outcome in outcomes] == [Returned]
        assert start(launcher) == server
