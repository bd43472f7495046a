"""What was drawn ahead, in this process or in a fork of it, is what checks then hold a submission to."""

import os
import signal
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest
import torch

from conformance.components.registry import COMPONENTS
from conformance.judging import ahead
from conformance.judging import draws as drawing
from conformance.judging.ahead import draw_ahead, drawing_ahead
from conformance.judging.draws import Draws
from conformance.judging.run_check import draws_of, run_check
from conformance.oracle import remembered
from conformance.oracle.remembered import right_training
from conformance.oracle.training import train
from conformance.workload.numbers import data_seed, draw_inputs

BOUNDS = {"world_size": 2, "seed": 20260101, "examples": 1}
SECRET = str(BOUNDS["seed"])


def of(name: str, check: int = 0) -> Draws:
    return draws_of(COMPONENTS[name], COMPONENTS[name].checks[check], SECRET, **BOUNDS)


@pytest.fixture(autouse=True)
def _nothing_drawn(monkeypatch):
    monkeypatch.setattr(ahead, "has_known_threads", lambda: True)  # xdist has threads, but none that computes
    monkeypatch.setattr(drawing, "_found", {})
    for name in ("_PACKED", "_RIGHT"):
        monkeypatch.setattr(remembered, name, replace(getattr(remembered, name), _values={}, _taken=0))


@pytest.mark.parametrize("name", ["ddp_bucketed", "sharded_optimizer"])
@pytest.mark.parametrize("in_a_fork", [False, True])
def test_a_check_draws_nothing_that_was_drawn_ahead(name, in_a_fork, monkeypatch):
    held = []

    def running(_, drawn):
        held.extend(drawn)
        yield from ()

    with ExitStack() as forked:
        if in_a_fork:
            forked.enter_context(drawing_ahead([of("naive_ddp"), of(name)]))
        else:
            draw_ahead([of(name)])
        monkeypatch.setattr(Draws, "hold", lambda *_: pytest.fail("it is drawn again"))
        executor = SimpleNamespace(secret=SECRET, simulated=None, ahead=running)
        assert run_check(COMPONENTS[name], COMPONENTS[name].checks[0], executor, **BOUNDS).status == "passed"
    assert len(held) == 1


def test_a_fork_draws_the_same_and_trains_on_it(monkeypatch):
    (scenario,) = here = of("sharded_optimizer").all()
    seed = data_seed(SECRET, scenario)
    drawing._found.clear()
    judge = os.getpid()
    in_a_fork = lambda *given: pytest.fail("it trains here") if os.getpid() == judge else train(*given)  # noqa: E731
    monkeypatch.setattr(remembered, "train", in_a_fork)
    with drawing_ahead([of("sharded_optimizer")]):
        assert of("sharded_optimizer").all() == here
        seen = right_training(scenario, seed)
    wanted = train(scenario, draw_inputs(scenario, seed))
    for name, value in wanted.parameters[-1].items():
        assert torch.equal(seen.parameters[-1][name], value)


def test_what_a_fork_cannot_draw_is_drawn_here(monkeypatch):
    real, judge = Draws.hold, os.getpid()

    def hold(self, held):
        if os.getpid() != judge:
            raise ValueError("not here")
        return real(self, held)

    monkeypatch.setattr(Draws, "hold", hold)
    with drawing_ahead([of("naive_ddp"), of("ddp_bucketed")]):
        assert len(of("ddp_bucketed").all()) == 1
        assert len(of("naive_ddp").all()) == 1


def test_a_fork_that_is_killed_costs_nothing_and_none_is_left():
    before = psutil.Process().children()
    with drawing_ahead([of("naive_ddp", check) for check in range(5)]):
        (fork,) = set(psutil.Process().children()) - set(before)
        fork.kill()
        assert len(of("naive_ddp", 4).all()) == 1
    assert not fork.is_running()
    with drawing_ahead([of("naive_ddp", 4)]):
        assert psutil.Process().children() == before  # there is nothing to draw


def test_where_a_fork_hangs_everything_is_drawn_here(monkeypatch):
    real, judge = Draws.hold, os.getpid()
    monkeypatch.setattr(Draws, "hold", lambda *given: real(*given) if os.getpid() == judge else signal.pause())
    monkeypatch.setattr(ahead, "_MOST_MILLISECONDS", 1)
    with drawing_ahead([of("naive_ddp"), of("ddp_bucketed")]):
        assert len(of("ddp_bucketed").all()) == len(of("naive_ddp").all()) == 1


def test_nothing_is_forked_beside_threads_that_python_does_not_know(monkeypatch):
    monkeypatch.setattr(ahead, "has_known_threads", lambda: False)
    before = psutil.Process().children()
    with drawing_ahead([of("naive_ddp")]):
        assert psutil.Process().children() == before
        assert len(of("naive_ddp").all()) == 1
