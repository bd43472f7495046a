"""`--ddp-launcher=ray` before it connects: how many ranks there are, and what it does not go together with."""

import sys
from types import SimpleNamespace

import pytest

from pytest_ddp.controller.job import job_key
from pytest_ddp.controller.ray_job import plan_ranks, reserve
from pytest_ddp.errors import LaunchError
from pytest_ddp.planning.world import World
from pytest_ddp.settings import Settings


def config(**options):
    return SimpleNamespace(stash=pytest.Stash(), add_cleanup=lambda _: None, getoption=options.get)


@pytest.mark.parametrize(
    ("settings", "nodes", "text"),
    [
        (Settings(ray_ranks=(2, 3)), (0, 0, 1, 1, 1), "5 ranks on 2 Ray nodes"),
        (Settings(world_size=(1, 4)), (0, 0, 0, 0), "4 ranks on 1 Ray node"),
    ],
)
def test_each_number_is_that_of_a_node(settings, nodes, text):
    here = config()
    plan_ranks(here, settings)
    assert (here.stash[job_key].nodes, str(here.stash[job_key])) == (nodes, text)


def test_a_world_on_other_ranks_than_the_first_has_a_pool_of_its_own():
    here = config()
    plan_ranks(here, Settings(ray_ranks=(2, 2)))
    layouts = [here.stash[job_key].layout(World(2, nodes=nodes)) for nodes in ((), (0, 0), (0, 1))]
    assert layouts == [(), (), (0, 1)]


def test_what_does_not_go_together_is_refused():
    with pytest.raises(pytest.UsageError, match="pytest-xdist cannot share the ranks"):
        plan_ranks(config(numprocesses=2), Settings())
    with pytest.raises(pytest.UsageError, match="starts ranks on CPUs only"):
        plan_ranks(config(), Settings(device="cuda"))
    here = config()
    plan_ranks(here, Settings())
    with pytest.raises(pytest.UsageError, match="runs in a job of torchrun"):
        plan_ranks(here, Settings())
    with pytest.raises(LaunchError, match="use CPUs, and this test asks for GPUs"):
        here.stash[job_key].pool(World(2, "gloo", "cuda"))


def test_without_ray_its_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    here = config()
    plan_ranks(here, Settings(launcher="ray"))
    with pytest.raises(pytest.UsageError, match=r"--ddp-launcher=ray needs the package ray: pip install 'pytest-ddp"):
        reserve(here)
