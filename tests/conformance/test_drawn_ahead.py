"""What is drawn before there is a submission is what checks then hold it to: no grader draws it again."""

from types import SimpleNamespace

import pytest

from conformance.components.registry import COMPONENTS
from conformance.judging.ahead import draw_ahead
from conformance.judging.draws import Draws
from conformance.judging.run_check import run_check

DRAWING = {"world_size": 2, "seed": 20260101, "examples": 1}


@pytest.mark.parametrize("name", ["ddp_bucketed", "sharded_optimizer"])
def test_a_check_draws_nothing_that_was_drawn_ahead(name, monkeypatch):
    component = COMPONENTS[name]
    check = component.checks[0]
    draw_ahead(component, [check], **DRAWING)
    held = []

    def ahead(_, drawn):
        held.extend(drawn)
        yield from ()

    monkeypatch.setattr(Draws, "hold", lambda *_: pytest.fail("it is drawn again"))
    executor = SimpleNamespace(secret=str(DRAWING["seed"]), simulated=None, ahead=ahead)
    assert run_check(component, check, executor, **DRAWING).status == "passed"
    assert len(held) == 1
