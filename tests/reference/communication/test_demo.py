"""The demo shows a sum that is bitwise right on every rank, and fails if a sum is wrong."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from pytest_ddp import DDPContext, distributed
from reference.communication.demo import demo, random_integers, ranks_with_wrong_sum


@distributed(world_size=[1, 2, 3, 4])
def test_rank_0_prints_the_input_and_result_of_each_rank(ddp: DDPContext, capsys: pytest.CaptureFixture[str]) -> None:
    demo(elements=3, seed=7)
    output = capsys.readouterr().out
    if ddp.rank != 0:
        assert not output
        return
    inputs = [random_integers(3, 7 + rank).tolist() for rank in range(ddp.world_size)]
    result = " ".join(str(sum(numbers)) for numbers in zip(*inputs, strict=True))
    lines = [line for line in output.splitlines() if "correct" in line]
    assert len(lines) == ddp.world_size
    for numbers, line in zip(inputs, lines, strict=True):
        assert " ".join(map(str, numbers)) in line
        assert result in line
    assert "bitwise equal on all ranks" in output


@distributed(world_size=3)
def test_a_wrong_result_raises_on_every_rank(
    ddp: DDPContext, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = dist.all_reduce

    def wrong_on_rank_1(tensor: Tensor) -> None:
        right(tensor)
        tensor[-1] += ddp.rank == 1

    monkeypatch.setattr(dist, "all_reduce", wrong_on_rank_1)
    with pytest.raises(RuntimeError, match=r"the result is not the sum of all inputs on ranks \[1\]"):
        demo(elements=20, seed=0)
    output = capsys.readouterr().out
    assert ("wrong on ranks [1]" in output) == (ddp.rank == 0)
    assert output.count("│ correct │") == (2 if ddp.rank == 0 else 0)


@distributed(world_size=2)
def test_inputs_that_were_not_summed_are_wrong_on_every_rank(ddp: DDPContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "all_reduce", lambda _tensor: None)
    with pytest.raises(RuntimeError, match=r"on ranks \[0, 1\]"):
        demo(elements=4, seed=ddp.world_size)


def test_results_that_agree_but_are_not_the_sum_are_wrong() -> None:
    inputs = [torch.tensor([1, 2]), torch.tensor([3, 4])]
    assert ranks_with_wrong_sum(inputs, [torch.tensor([4, 6]), torch.tensor([4, 6])]) == []
    assert ranks_with_wrong_sum(inputs, [torch.tensor([4, 7]), torch.tensor([4, 7])]) == [0, 1]
    assert ranks_with_wrong_sum(inputs, [torch.tensor([4, 6]), torch.tensor([4, 5])]) == [1]
