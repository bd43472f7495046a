"""A small grade: one fork server, ranks of one size at a time, and less that is remembered."""

import gc
from contextlib import nullcontext

import pytest

from conformance.cli import main
from conformance.execution.fork_servers import ForkServers, fork_servers
from conformance.execution.rank_pools import SizedRanks
from conformance.oracle.remembered import Remembered, remembering
from pytest_ddp.errors import UsageError
from pytest_ddp.planning.world import World

RANK = "rank_targets:hash_of_a_text"


def test_all_ranks_of_a_small_grade_come_from_one_server():
    alone, two = ForkServers(small=True), ForkServers()
    assert [zygote.hash_seed for zygote in alone._zygotes] == [zygote.hash_seed for zygote in two._zygotes][:1]


def test_nothing_stays_frozen_when_the_servers_have_ended(monkeypatch):
    monkeypatch.setattr(ForkServers, "begin", lambda _: gc.freeze())
    with fork_servers():
        assert gc.get_freeze_count()
    assert not gc.get_freeze_count()


def test_ranks_of_one_size_end_before_others_start(launcher):
    with launcher.serving() as servers, SizedRanks(servers, servers.sandbox, one_size=True) as ranks:
        ranks.run(World(1), RANK, timeout=60)
        ranks.prepare(World(1))
        ranks.run(World(2), RANK, timeout=60)
        assert list(ranks._pools) == [2]
        with ranks.fresh() as others:
            assert not ranks._pools
            others.run(World(2), RANK, timeout=60)
        assert (others.one_size, ranks.counts["started"]) == (True, 5)


def test_a_share_of_what_is_remembered_is_enough_for_a_while(monkeypatch):
    cache = Remembered(100, len)
    monkeypatch.setattr("conformance.oracle.remembered._PACKED", cache)
    with remembering(0.5):
        for seed in range(3):
            cache.get("scenario", seed, lambda: b"." * 30)
        assert cache._taken == 30
    assert cache.limit == 100


@pytest.mark.parametrize(("options", "ranks"), [([], 2), (["--world-size", "3"], 3)], ids=["usual", "three ranks"])
def test_a_small_grade_has_core_checks_on_two_ranks(monkeypatch, tmp_path, options, ranks):
    asked = []
    (tmp_path / "adapters.py").touch()

    def no_grade(_, grading, launcher):
        asked.extend([launcher, grading.core, grading.world_size])
        raise UsageError("enough")

    monkeypatch.setattr("conformance.commands.grade.fork_servers", lambda _, *, small: nullcontext(small))
    monkeypatch.setattr("conformance.grading.grade.grade", no_grade)
    assert main([str(tmp_path), "--small", *options]) == 2
    assert asked == [True, True, ranks]
