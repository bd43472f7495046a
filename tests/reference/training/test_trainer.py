"""A training on N ranks equals that of one process on the same global batches, also if it was interrupted."""

import re
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from reference_models import DTYPE, INPUTS, linear
from rich.console import Console
from side_by_side import assert_close, assert_same_on_all_ranks
from subgroups import subgroups_destroyed
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import DataLoader
from trainings import (
    EPOCHS,
    SIZE,
    WRAPPERS,
    Interrupted,
    Labelled,
    Recipe,
    Regression,
    interrupted_after,
    make_trainer,
    result,
    train_alone,
)

from pytest_ddp import DDPContext, distributed
from reference.data.samplers import EvaluationSampler
from reference.training import interruption
from reference.training import trainer as trainer_module


def assert_equal_to_rounding(mine: list[Tensor], expected: list[Tensor]) -> None:
    for number, (one, other) in enumerate(zip(mine, expected, strict=True)):
        assert_close(one, other, 1e-12, f"tensor {number}")


def assert_equal(mine: list[Tensor], expected: list[Tensor]) -> None:
    assert len(mine) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(mine, expected, strict=True))


# Equal to one process


RECIPES = {
    **{name: Recipe(name) for name in WRAPPERS},
    **{f"{name}-accumulating": Recipe(name, accumulate=3) for name in WRAPPERS},
    **{f"{name}-sharded": Recipe(name, accumulate=2, sharded=True) for name in WRAPPERS if name != "fsdp"},
}


@distributed(world_size=[2, 4])
@pytest.mark.parametrize("name", RECIPES)
def test_training_equals_one_process_on_the_same_batches(name: str, ddp: DDPContext) -> None:
    with subgroups_destroyed():
        trainer = make_trainer(RECIPES[name])
        trainer.train(EPOCHS)
        expected = train_alone(replace(RECIPES[name], sharded=False), ddp.world_size)
        assert_equal_to_rounding(result(trainer), expected)


@distributed(world_size=2)
def test_an_accumulation_is_one_step_and_the_last_one_may_be_shorter(ddp: DDPContext, tmp_path: Path) -> None:
    saved: list[tuple[int, int]] = []
    trainer = make_trainer(Recipe(accumulate=4), tmp_path / "last.pt", checkpoint_every=1)
    with patch.object(
        trainer_module, "save_checkpoint", lambda *_, progress, **__: saved.append((progress.steps, progress.examples))
    ):
        trainer.train(1)
    assert len(trainer.loader) == 6
    per_batch = 4 * ddp.world_size
    assert saved == [(1, 4 * per_batch), (2, 6 * per_batch), (2, 0)]
    assert trainer.scheduler.last_epoch == 2


# Resuming


def dropping() -> nn.Module:
    return nn.Sequential(linear(INPUTS), nn.BatchNorm1d(6, dtype=DTYPE), nn.Dropout(0.5), linear(6, 3))


def evaluation(noise: float) -> DataLoader[tuple[Tensor, Tensor]]:
    """Evaluation data whose loader also draws random numbers."""
    dataset = Labelled(noise)
    return DataLoader(dataset, 5, sampler=EvaluationSampler(dataset))


@distributed(world_size=2)
@pytest.mark.parametrize("backwards", [2, 5, 6, 9, 11], ids=lambda number: f"{number} backwards")
def test_an_interrupted_training_resumes_to_the_last_bit(ddp: DDPContext, backwards: int) -> None:
    """An epoch has six microbatches, a step has two, and a checkpoint is saved after each step and epoch."""
    recipe = Recipe(sharded=True, optimizer=AdamW, accumulate=2, make=dropping, dataset=Regression(noise=0.1))
    path = ddp.shared_path / "last.pt"

    torch.manual_seed(ddp.rank)
    whole = make_trainer(recipe)
    expected = whole.train(EPOCHS, evaluation(noise=0.1))

    torch.manual_seed(ddp.rank)
    first = make_trainer(replace(recipe, loss_fn=interrupted_after(backwards)), path, checkpoint_every=1)
    with pytest.raises(Interrupted):
        first.train(EPOCHS, evaluation(noise=0.1))

    torch.manual_seed(1234)
    resumed = make_trainer(recipe, path)
    resumed.resume(path)
    assert resumed.progress.steps == backwards // 2
    results = resumed.train(EPOCHS, evaluation(noise=0.1))
    assert_equal(result(resumed), result(whole))
    assert (resumed.progress, resumed.scheduler.get_last_lr()) == (whole.progress, whole.scheduler.get_last_lr())
    assert [each.accuracy for each in results] == [each.accuracy for each in expected[-len(results) :]]


@distributed(world_size=[1, 2])
def test_an_epoch_that_was_interrupted_after_its_last_step_is_finished_without_a_loss(
    ddp: DDPContext, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe, path = Recipe(dataset=Regression(noise=0.1)), ddp.shared_path / "last.pt"
    torch.manual_seed(ddp.rank)
    whole = make_trainer(recipe)
    expected = whole.train(2, evaluation(noise=0.1))
    torch.manual_seed(ddp.rank)
    first = make_trainer(recipe, path)
    first.interruption = SimpleNamespace(on_any_rank=lambda: first.progress.steps == len(first.loader))
    with pytest.raises(interruption.Interrupted):
        first.train(2)
    first.save()
    resumed = make_trainer(recipe, path)
    resumed.resume(path)
    results = resumed.train(2, evaluation(noise=0.1))
    assert results == [replace(expected[0], loss=None), expected[1]]
    assert_equal(result(resumed), result(whole))
    assert ("epoch 1/2: resumed after its last step, accuracy" in capfd.readouterr().out) == (ddp.rank == 0)


def trained(path: str, batch_size: int, backwards: int | None) -> list[Tensor] | None:
    """Train from a checkpoint to the end, or until an interruption that leaves a checkpoint."""
    recipe = Recipe(sharded=True, batch_size=batch_size)
    trainer = make_trainer(recipe, Path(path), checkpoint_every=1)
    if backwards is None:
        trainer.resume(Path(path))
        trainer.train(EPOCHS)
        return result(trainer)
    with pytest.raises(Interrupted):
        make_trainer(replace(recipe, loss_fn=interrupted_after(backwards)), Path(path), checkpoint_every=1).train(
            EPOCHS
        )
    return None


@pytest.mark.parametrize("backwards", [4, 14])
def test_a_training_resumes_on_another_number_of_ranks_with_the_same_global_batches(
    ddp_ranks: Callable[..., Any], tmp_path: Path, backwards: int
) -> None:
    """The padding is the same: 43 examples become 44 on 2 ranks and on 4."""
    path = str(tmp_path / "last.pt")
    ddp_ranks(world_size=2).run(trained, path, 2, backwards)
    for mine in ddp_ranks(world_size=4).run(trained, path, 1, None):
        assert_equal_to_rounding(mine, train_alone(Recipe(batch_size=2), world_size=2))


# Output


@distributed(world_size=2)
def test_only_rank_0_prints(ddp: DDPContext, capfd: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer(Recipe(), ddp.shared_path / "last.pt")
    trainer.train(1)
    trainer.resume(ddp.shared_path / "last.pt")
    out, err = capfd.readouterr()
    assert err == ""
    if ddp.rank == 0:
        assert "epoch 1/1: loss " in out
        assert "examples/s on 2 ranks" in out
        assert f"resumed from {ddp.shared_path / 'last.pt'}: 1 epochs and 6 steps are done" in out
    else:
        assert out == ""


@distributed(world_size=1)
def test_a_terminal_shows_progress() -> None:
    terminal = StringIO()
    make_trainer(Recipe(), console=Console(file=terminal, force_terminal=True)).train(1)
    shown = terminal.getvalue()
    assert "epoch 1/1 " in shown
    assert "100%" in shown
    assert re.search(r"loss \d+\.\d{4}, \d+ examples/s", shown)


@distributed(world_size=2)
def test_evaluation_and_checkpoints_have_rank_0s_statistics(ddp: DDPContext) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(INPUTS, dtype=DTYPE), linear(INPUTS, 3))

    trainer = make_trainer(Recipe(make=model), ddp.shared_path / "last.pt")
    for act in (lambda: trainer.evaluate([]), trainer.save):
        trainer.model(torch.randn(8, INPUTS, dtype=DTYPE) + ddp.rank)
        act()
        assert_same_on_all_ranks(trainer.model.buffers())


@distributed(world_size=[1, 3])
def test_results_are_those_of_all_ranks_and_the_same_on_each(ddp: DDPContext) -> None:
    losses: list[tuple[float, int]] = []

    def noted(outputs: Tensor, targets: Tensor) -> Tensor:
        loss = nn.functional.mse_loss(outputs, targets)
        losses.append((loss.item(), len(targets)))
        return loss

    trainer = make_trainer(Recipe(loss_fn=noted))
    [epoch] = trainer.train(1, evaluation(noise=0))
    everybodys: list[Any] = [None] * ddp.world_size
    dist.all_gather_object(everybodys, losses)
    together = [each for one in everybodys for each in one]
    mean = sum(loss * count for loss, count in together) / sum(count for _, count in together)
    assert epoch.loss == pytest.approx(mean, rel=1e-12)
    outputs = trainer.model.module(Labelled().inputs)
    correct = outputs.argmax(dim=1) == Labelled().targets.argmax(dim=1)
    assert epoch.accuracy == correct.sum().item() / SIZE
    dist.all_gather_object(everybodys, epoch)
    assert all(each == epoch for each in everybodys)
