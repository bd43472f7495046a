"""What a process keeps of earlier worlds and models is no fault: those of a real run have one world, and one model."""

import io

import pytest
from rich.console import Console

from conformance.components.registry import COMPONENTS
from conformance.execution.executor import Executor
from conformance.execution.fork_servers import ranks_from
from conformance.grading.formats.console import show
from conformance.grading.report import ComponentReport, Environment, Report
from conformance.judging.hold import Search
from conformance.judging.run_check import draws_of, judged, run_check
from conformance.scenarios.scenario import Scenario
from conformance.submissions.location import locate
from pytest_ddp.planning.world import World

AVERAGES = """
import functools
import os
import torch.distributed as dist

{head}

def get_naive_ddp(module):
    {first}
    for p in module.parameters():
        dist.broadcast(p.data, src=0, group={group})
    return module

def naive_ddp_on_after_backward(ddp_model, optimizer):
    for p in ddp_model.parameters():
        dist.all_reduce(p.grad, group={group})
        p.grad /= {size}
"""
SIZE = "dist.get_world_size()"
KEEPS = {
    "the world size of its import": {"head": "N = int(os.environ['WORLD_SIZE'])", "size": "N"},
    "the world size of its first use": {
        "head": "@functools.cache\ndef size():\n    return dist.get_world_size()",
        "size": "size()",
    },
}
FORGETS_NOTHING = {
    "a process group": {"head": "@functools.cache\ndef group():\n    return dist.new_group()", "group": "group()"},
    "a list": {"head": "MODELS = []", "first": "MODELS.append(module)\n    assert len(MODELS) < 4"},
}
CHECK = next(check for check in COMPONENTS["naive_ddp"].checks if check.id == "gradients_averaged")


@pytest.fixture
def executor(launcher, submit):
    """Makes what runs a submission that keeps something."""
    opened = []

    def run(**parts):
        text = AVERAGES.format(**{"head": "", "first": "pass", "group": "None", "size": SIZE, **parts})
        opened.append(ranks_from(launcher))
        found = Executor(opened[-1].__enter__(), locate(str(submit(text))), "1")
        assert not found.look([]).error
        return found

    yield run
    for ranks in opened:
        ranks.__exit__(None, None, None)


def held(executor, examples=10):
    return run_check(COMPONENTS["naive_ddp"], CHECK, executor, world_size=3, seed=1, examples=examples)


@pytest.mark.parametrize("kept", KEEPS.values(), ids=KEEPS.keys())
def test_a_process_has_worlds_of_one_size(executor, kept):
    found = executor(**kept)
    assert held(found).status == "passed"
    assert found.alone == set()


@pytest.mark.parametrize("kept", FORGETS_NOTHING.values(), ids=FORGETS_NOTHING.keys())
def test_what_fails_only_in_a_process_that_has_run_something_is_run_in_new_ones(executor, kept):
    found = executor(**kept)
    result = held(found)
    drawn = draws_of(COMPONENTS["naive_ddp"], CHECK, "1", world_size=3, seed=1, examples=10).all()
    assert (result.status, result.message, result.examples) == ("passed", "", len(drawn))
    assert found.alone == {"naive_ddp"}
    assert held(found).status == "passed"


def test_a_fault_is_found_all_the_same(executor):
    found = executor(**FORGETS_NOTHING["a list"], size="2")
    result = held(found)
    assert result.status == "failed"
    assert "divided by a fixed 2" in result.diagnosis
    assert result.scenario.world_size == 3


def test_a_replay_does_not_accuse_it_either(executor):
    found = executor(**FORGETS_NOTHING["a process group"])
    assert judged(Search(COMPONENTS["naive_ddp"], CHECK, found), Scenario()).status == "passed"
    assert found.alone == {"naive_ddp"}


def test_ranks_that_wait_in_a_group_are_in_the_next_one_of_its_size(launcher):
    with ranks_from(launcher) as ranks:
        for world in (World(2), World(3), World(2)):  # the second of two groups of one size is left to the first
            ranks.run(world, "pytest_ddp.rank.worker:joined", timeout=60)
            ranks.prepare(World(2))
            ranks.prepare(World(3))
        outcomes = ranks.run(World(3), "pytest_ddp.rank.worker:joined", timeout=60)
    assert [outcome.rank for outcome in outcomes] == [0, 1, 2]
    assert ranks.counts["started"] == 2 + 3


def test_the_report_says_so():
    graded = ComponentReport("ddp", (), new_processes=True)
    assert graded.to_json()["new_processes"] is True
    shown = io.StringIO()
    environment = Environment("2", "3", "gloo", "cpu", 2, 1)
    show(Report("x", environment, (graded,)), Console(file=shown, width=120))
    assert "In new processes: ddp fails in a process that ran something before" in shown.getvalue()
