"""Ranks of one world do not agree on the `hash` of a text, as under torchrun; their hash seeds are constant."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from bug import right
from bugs import BUGS
from rank_targets import hash_of_a_text, leaves

from conformance.execution.fork_servers import fork_servers, ranks_from
from conformance.judging.triage import HASH_APART
from conformance.sandbox.zygotes import Zygote
from pytest_ddp.outcomes.outcome import Died, Returned
from pytest_ddp.planning.world import World
from pytest_ddp.pool.launcher import EXIT_SECONDS

SECONDS = 60
REPLAYS = "from conformance.cli import main"
TARGET = f"rank_targets:{hash_of_a_text.__name__}"


def hashes(ranks, size=3):
    outcomes = ranks.run(World(size), TARGET, timeout=SECONDS)
    return [outcome.body for outcome in outcomes if isinstance(outcome, Returned)]


def test_ranks_of_a_world_hash_apart_whatever_the_environment_says(launcher, monkeypatch):
    with ranks_from(launcher) as ranks:
        first, second, third = hashes(ranks)
    assert first == third != second
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    with fork_servers() as others, ranks_from(others) as ranks:
        assert hashes(ranks) == [first, second, third]


def test_a_rank_that_takes_the_place_of_another_hashes_like_it(launcher):
    with ranks_from(launcher) as ranks:
        before = hashes(ranks)
        outcomes = ranks.run(World(2), f"rank_targets:{leaves.__name__}", timeout=SECONDS)
        assert [outcome.exit_code for outcome in outcomes if isinstance(outcome, Died)] == [3, 3]
        assert hashes(ranks) == before


def test_ranks_of_one_server_hash_alike(launcher):
    with ranks_from(launcher) as ranks, ranks.fresh() as own:
        own.launcher = ranks.launcher.alike
        assert len(set(hashes(own))) == 1


@pytest.mark.long
def test_a_server_that_died_is_replaced_and_none_is_left():
    with fork_servers() as servers, ranks_from(servers) as ranks:
        before = hashes(ranks)
        started = [psutil.Process(server._server.pid) for server in ranks.launcher.servers]
        started[1].kill()
        started[1].wait(EXIT_SECONDS)
        assert hashes(ranks) == before
        started = [psutil.Process(server._server.pid) for server in ranks.launcher.servers]
    assert not any(server.is_running() for server in started)


@pytest.mark.long
def test_a_zygote_that_died_is_replaced():
    with fork_servers() as servers:
        with ranks_from(servers) as ranks:
            before = hashes(ranks)
        zygote = psutil.Process(servers._zygotes[1]._process.pid)
        zygote.kill()
        zygote.wait(EXIT_SECONDS)
        with ranks_from(servers) as ranks:
            assert hashes(ranks) == before


def test_both_zygotes_begin_at_once(monkeypatch):
    begun = []
    monkeypatch.setattr(Zygote, "begin", lambda zygote, *, forked=False: begun.append(zygote.hash_seed))  # noqa: ARG005
    with fork_servers():
        assert len(set(begun)) == 2


@pytest.mark.long
def test_a_script_replays_what_fails_only_where_ranks_hash_apart(checked, submit):
    bug = next(bug for bug in BUGS if bug.words and bug.words in HASH_APART)
    found = checked(submit(**bug.planted()), bug.component, bug.check)
    wrong = _run(found.script)
    assert (wrong.returncode, REPLAYS in _text(found.script)) == (1, True), wrong.stdout + wrong.stderr
    submit(**right(bug.component))
    assert _run(found.script).returncode == 0


def test_no_hash_is_suspected_of_what_fails_anyhow(first_failed):
    failed = first_failed("examples/unsynchronised_flat", "flat_ddp")
    assert HASH_APART not in failed.diagnosis
    assert REPLAYS not in _text(failed.script)


def _run(script):
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=120)


def _text(script):
    return Path(script).read_text(encoding="utf-8")
