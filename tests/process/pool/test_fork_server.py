"""The fork server is begun before anybody knows all that it should start with."""

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


def begun(launcher: ForkLauncher) -> int:
    """Begin; return the server's process id."""
    launcher.start_server()
    assert launcher._server is not None
    return launcher._server.pid


def test_begun_twice_it_is_started_once(launcher):
    assert begun(launcher) == begun(launcher)


def test_another_environment_starts_it_anew(launcher, monkeypatch):
    before = begun(launcher)
    monkeypatch.setenv("READ_WHEN_TORCH_IS_IMPORTED", "1")
    assert begun(launcher) != before


def test_hypothesis_that_has_come_meanwhile_starts_it_anew(launcher, monkeypatch):
    with monkeypatch.context() as without:
        without.delitem(sys.modules, "hypothesis", raising=False)
        before = begun(launcher)
    monkeypatch.setitem(sys.modules, "hypothesis", hypothesis)
    assert begun(launcher) != before


def test_once_it_has_ranks_nothing_changes_it(launcher, monkeypatch):
    server = begun(launcher)
    with RankPool(launcher) as pool:
        monkeypatch.setenv("SET_BY_A_TEST", "1")
        outcomes = pool.run(World(1), "pytest_ddp.rank.worker:joined", timeout=60)
        assert [type(outcome) for outcome in outcomes] == [Returned]
        assert begun(launcher) == server
