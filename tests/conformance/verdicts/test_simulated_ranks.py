"""Simulated ranks run what they can first; what fails there counts only if real ranks show it too."""

import io
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from conformance.components.registry import COMPONENTS
from conformance.execution.executor import Executor
from conformance.execution.fork_servers import ForkServers, ranks_from
from conformance.execution.simulated_ranks import SimulatedRanks, can_be_simulated
from conformance.grading.events import Reports
from conformance.grading.formats.console import show
from conformance.grading.grade import Grading, grade, planned
from conformance.grading.report import CheckReport, ComponentReport
from conformance.judging.run_check import Result, draws_of, run_check
from conformance.protocol.codec import MalformedError, join, split
from conformance.protocol.explored import Explored
from conformance.scenarios.scenario import Scenario
from conformance.submissions.location import locate

AVERAGES = """
import threading
import torch
import torch.distributed as dist

{head}

def get_naive_ddp(module):
    for p in module.parameters():
        dist.broadcast(p.data, src=0)
    return module

def average(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= {size}

def naive_ddp_on_after_backward(ddp_model, optimizer):
    {finish}
"""
RIGHT = {"head": "", "size": "dist.get_world_size()", "finish": "average(ddp_model)"}
IN_A_THREAD = "done = threading.Thread(target=average, args=(ddp_model,)); done.start(); done.join()"
KEEPS_A_RANK = "RANKS = set()"
NOTES_ITS_RANK = "RANKS.add(dist.get_rank()); assert len(RANKS) == 1; average(ddp_model)"
POLLS = """
    import time
    handles = [dist.all_reduce(p.grad, async_op=True) for p in ddp_model.parameters()]
    for handle in handles:
        if not handle.is_completed():
            time.sleep(0.05)
    for p in ddp_model.parameters():
        p.grad /= dist.get_world_size()
""".strip()
SPINS = """
    for p in ddp_model.parameters():
        handle = dist.all_reduce(p.grad, async_op=True)
        while not handle.is_completed():
            pass
        p.grad /= dist.get_world_size()
""".strip()
ADDS_AS_IT_COMES = """
    for p in ddp_model.parameters():
        parts = [torch.empty_like(p) for _ in range(dist.get_world_size())]
        handle = dist.all_gather(parts, p.grad, async_op=True)
        order = 1 if handle.is_completed() else -1
        handle.wait()
        p.grad = sum(parts[::order]) / dist.get_world_size()
        dist.broadcast(p.grad, 0)
""".strip()
NAIVE = COMPONENTS["naive_ddp"]
CHECKS = {check.id: check for check in NAIVE.checks}
Hold = Callable[..., Result]


@pytest.fixture
def held(launcher: ForkServers, submit) -> Hold:
    """Holds a submission to a check, on simulated ranks first; `executors` are those of real and simulated ranks."""

    def hold(check: str, **parts: str) -> Result:
        location = locate(str(submit(AVERAGES.format(**{**RIGHT, **parts}))))
        with ranks_from(launcher) as ranks:
            executor = Executor(ranks, location, "1")
            assert not executor.look([]).error
            executor.simulated = executor.on(ranks.other(SimulatedRanks))
            hold.executors = executor, executor.simulated
            return run_check(NAIVE, CHECKS[check], executor, world_size=3, seed=1, examples=5)

    return hold


def test_real_ranks_run_the_largest_scenario_alone_where_simulated_ranks_find_nothing(held: Hold):
    found = held("gradients_averaged")
    real, simulated = held.executors
    assert (found.status, found.disagreement) == ("passed", "")
    assert (real.executions, simulated.executions) == (1, 4)


def test_real_ranks_confirm_a_failure(held: Hold):
    found = held("gradients_averaged", size="2")
    real, simulated = held.executors
    assert (found.status, found.disagreement) == ("failed", "")
    assert "divided by a fixed 2" in found.diagnosis
    assert real.executions
    assert simulated.executions


def test_what_fails_on_simulated_ranks_alone_is_no_failure(held: Hold):
    found = held("gradients_averaged", finish=IN_A_THREAD)
    real, _ = held.executors
    assert found.status == "passed"
    assert "gradient" in found.disagreement
    assert real.executions == 5


def test_an_order_that_differs_between_processes_is_found(held: Hold):
    found = held("gradients_averaged", finish="average(ddp_model) if hash('x') % 2 else None")
    assert (found.status, found.when) == ("failed", "hash_apart")


def test_each_rank_has_its_own_copies_of_the_modules(held: Hold):
    found = held("gradients_averaged", head=KEEPS_A_RANK, finish=NOTES_ITS_RANK)
    assert (found.status, found.disagreement) == ("passed", "")


def test_gated_scenarios_run_on_real_ranks(held: Hold):
    assert held("results_are_waited_for").status == "passed"
    real, simulated = held.executors
    assert (real.executions, simulated.executions) == (5, 0)


def test_a_bug_that_only_64_ranks_show_is_found(held: Hold):
    assert held("large_worlds").status == "passed"
    found = held("large_worlds", size="min(dist.get_world_size(), 32)")
    assert found.status == "failed"
    assert "It is right with 3 ranks" in found.diagnosis
    assert found.scenario is not None
    assert found.scenario.world_size == 64


def test_a_bug_that_only_some_orders_show_is_found(held: Hold):
    found = held("any_schedule", finish=POLLS)
    assert found.status == "failed"
    assert "It is right where ranks run in turn" in found.diagnosis
    assert "in training on simulated ranks: WriteInFlight: rank " in found.message
    assert found.scenario is not None
    assert found.scenario.order


def test_a_passed_check_says_that_every_order_was_run(held: Hold):
    found = held("any_schedule")
    assert (found.status, found.examples) == ("passed", 1)
    assert found.message == (
        "The only distinguishable order of 3 ranks and 12 operations has no problem (1 run). "
        "Orders in which every rank reads the same bits at the same places count as one."
    )


def test_where_there_are_too_many_orders_drawn_ones_are_run(held: Hold):
    found = held("any_schedule", finish=SPINS)
    assert (found.status, found.examples) == ("passed", 6)
    assert re.fullmatch(
        r"Not every order was run: 3 ranks have more than the \d+ distinguishable orders that 60 runs have shown\. "
        r"Drawn orders were run as well\.",
        found.message,
    )


def test_orders_may_differ_by_rounding(held: Hold):
    found = held("any_schedule", finish=ADDS_AS_IT_COMES)
    assert found.status == "passed"
    assert found.message == ("Orders of 3 ranks differ, but not by more than rounding. Drawn orders were run as well.")


def test_ranks_that_do_not_answer_for_all_orders_are_said(held: Hold, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SimulatedRanks, "explore", lambda *_, **__: None)
    found = held("any_schedule")
    assert (found.status, found.examples) == ("passed", 6)
    assert found.message.startswith("Not every order was run: 3 simulated ranks did not answer. Drawn orders")


def test_ranks_that_answer_something_else_are_no_exploration(launcher: ForkServers):
    with ranks_from(launcher) as ranks:
        assert ranks.other(SimulatedRanks).explore([b"no task"], timeout=30) is None


@pytest.mark.parametrize(
    "explored", [Explored(1, 1, 12, finished=True), Explored(3, 2, found=(0, 1)), Explored(60, 58)]
)
def test_what_was_explored_survives_its_trip(explored: Explored):
    assert Explored.decode(explored.encode()) == explored


@pytest.mark.parametrize("sent", [b"", b"[]", b"{}", replace(Explored(1, 1), runs="1").encode(), b'{"found": [-1]}'])
def test_other_bytes_are_no_exploration(sent: bytes):
    with pytest.raises(MalformedError, match="not what ranks of ours found in all orders"):
        Explored.decode(sent)


def test_the_console_shows_what_exploration_has_shown():
    check = CheckReport("any_schedule", "extended", "passed", "Training is right.", message="All 8 orders are right.")
    report = replace(
        planned("p", Grading(1, 2, ("naive_ddp",), 3)), components=(ComponentReport("naive_ddp", (check,)),)
    )
    shown = io.StringIO()
    show(report, Console(file=shown, width=300))
    assert "any_schedule: naive_ddp: All 8 orders are right." in shown.getvalue()


@pytest.mark.parametrize("finish", [IN_A_THREAD, "1 / 0"])
def test_what_simulated_ranks_cannot_run_is_no_failure_in_a_large_world(held: Hold, finish: str):
    found = held("large_worlds", finish=finish)
    assert (found.status, found.refused) == ("not_run", False)
    assert "simulated ranks do not run it as real ranks do" in found.message


@pytest.mark.parametrize("fact", ["gated", "counted", "spoiled", "weighed", "simulated"])
def test_what_needs_processes_is_not_simulated(fact: str):
    assert can_be_simulated(NAIVE, Scenario())
    assert not can_be_simulated(NAIVE, Scenario(**{fact: True}))
    assert not can_be_simulated(COMPONENTS["checkpoint"], COMPONENTS["checkpoint"].simplest)


def test_simulated_and_real_ranks_see_the_same(launcher: ForkServers):
    """With two ranks, each order of a sum gives the same bits."""
    drawn = draws_of(NAIVE, CHECKS["gradients_averaged"], "1", world_size=2, seed=1, examples=3).all()
    with ranks_from(launcher) as ranks:
        executor, simulated = Executor(ranks, locate("examples/correct"), "1"), ranks.other(SimulatedRanks)
        for one in drawn:
            real, seen = executor.run(NAIVE, one), executor.on(simulated).run(NAIVE, one)
            for there, here in zip(real.answers[0], seen.answers[0], strict=True):
                assert there.tensors.keys() == here.tensors.keys()
                assert all(torch.equal(there.tensors[name], here.tensors[name]) for name in there.tensors)
                assert [one.op for one in there.happenings[0]] == [one.op for one in here.happenings[0]]


def test_a_grade_says_where_they_differ(launcher: ForkServers, submit):
    path = str(submit(AVERAGES.format(**{**RIGHT, "finish": IN_A_THREAD})))
    grading = Grading(1, 2, ("naive_ddp",), 3, core=True, simulate=True)
    (report,) = Reports.of(grade([path], grading, launcher))
    shown = io.StringIO()
    show(report, Console(file=shown, width=300))
    assert report.components[0].checks[0].status == "passed"
    assert "On simulated ranks only: naive_ddp fails in gradients_averaged" in shown.getvalue()


def test_parts_are_joined_and_split():
    parts = [b"", b"a", b"bc" * 1000]
    assert split(join(parts)) == parts
    with pytest.raises(MalformedError, match="end early"):
        split(join(parts) + b"\0")
