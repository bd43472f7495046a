"""Ctrl-C is noted, exchanged after each step, and seen by every rank after the same one."""

import signal

import pytest
import torch

from pytest_ddp import DDPContext, distributed
from reference.training import interruption as interruption_module
from reference.training.interruption import Interruption, ranks_stop_first

CPU = torch.device("cpu")


@distributed(world_size=3)
def test_every_rank_sees_it_one_step_after_one_rank_was_interrupted(ddp: DDPContext) -> None:
    seen = []
    with Interruption(CPU) as interruption:
        for step in range(4):
            if step == 1 and ddp.rank == 2:
                signal.raise_signal(signal.SIGINT)
            seen.append(interruption.on_any_rank())
    assert seen == [False, False, True, True]


@distributed(world_size=3)
def test_after_the_last_step_every_rank_sees_it_at_once(ddp: DDPContext) -> None:
    with Interruption(CPU) as interruption:
        assert not interruption.on_any_rank()
        assert not interruption.by_now_on_any_rank()
        if ddp.rank == 2:
            signal.raise_signal(signal.SIGINT)
        assert interruption.by_now_on_any_rank()


def test_one_process_sees_it_at_once_and_gets_its_own_handler_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruption(CPU) as interruption:
        assert not interruption.on_any_rank()
        signal.raise_signal(signal.SIGINT)
        assert interruption.on_any_rank()
        assert interruption.by_now_on_any_rank()
    assert signal.getsignal(signal.SIGINT) is before


def test_the_starting_process_leaves_the_first_ctrl_c_to_the_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter([10.0, 10.5, 13.0])
    monkeypatch.setattr(interruption_module.time, "monotonic", lambda: next(now))
    with ranks_stop_first() as was_interrupted:
        assert not was_interrupted()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)  # the same one, passed on
        assert was_interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert capsys.readouterr().err.count("Press it again to end at once") == 1
