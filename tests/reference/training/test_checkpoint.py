"""A training that is saved and loaded continues like an uninterrupted one; an error is raised on every rank."""

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from checkpointed import TORCH, Training, assert_equal, dropping, seed_generators
from reference_models import mlp
from reference_wrappers import WRAPPERS, Wrapper
from side_by_side import assert_same_on_all_ranks
from torch.optim import AdamW

from pytest_ddp import DDPContext, RankFailure, distributed
from reference.training.checkpoint import load_checkpoint, save_checkpoint
from reference.training.checkpoint_file import CheckpointError


@distributed(world_size=[2, 4])
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
@pytest.mark.parametrize("wrapper", [*WRAPPERS.values(), TORCH], ids=[*WRAPPERS, "torch"])
def test_training_resumes_to_the_last_bit(wrapper: Wrapper, sharded: bool, ddp: DDPContext) -> None:  # noqa: FBT001
    seed_generators()
    training = Training(wrapper, sharded=sharded)
    training.train(range(3))
    training.save(ddp.shared_path / "last.pt")
    expected = training.train(range(3, 6)), training.scheduler.get_last_lr(), training.scaler.get_scale()
    assert training.scaler.get_scale() == 8.0  # it has grown twice, so the count of good steps was saved

    resumed = Training(wrapper, sharded=sharded)
    assert resumed.load(ddp.shared_path / "last.pt") == 7
    assert_equal(resumed.train(range(3, 6)), expected[0])
    assert (resumed.scheduler.get_last_lr(), resumed.scaler.get_scale()) == expected[1:]
    assert_same_on_all_ranks(resumed.module.parameters())


@distributed(world_size=2)
def test_every_generator_of_every_rank_is_restored(ddp: DDPContext) -> None:
    def draw() -> list[float]:
        return [random.random(), torch.rand(()).item(), np.random.rand(), random.gauss(0, 1), np.random.normal()]  # noqa: NPY002, S311

    seed_generators()
    training = Training()
    draw()  # leaves the second one of a pair of normal numbers
    training.save(ddp.shared_path / "last.pt")
    expected = draw()
    training.load(ddp.shared_path / "last.pt")
    assert draw() == expected
    drawn: list[list[float]] = [[], []]
    dist.all_gather_object(drawn, expected)
    assert all(one != other for one, other in zip(*drawn, strict=True))


# Writing, and failing to write


@distributed(world_size=3)
def test_only_rank_0_uses_the_disk_and_all_ranks_wait_for_it(ddp: DDPContext, monkeypatch: pytest.MonkeyPatch) -> None:
    if ddp.rank != 0:
        monkeypatch.setattr("reference.training.checkpoint.write_checkpoint_file", pytest.fail)
        monkeypatch.setattr("reference.training.checkpoint.read_checkpoint_file", pytest.fail)
    training = Training(sharded=True)
    for epoch in range(3):
        training.save(ddp.shared_path / f"{epoch}.pt")
        assert (ddp.shared_path / f"{epoch}.pt").exists()
        training.load(ddp.shared_path / f"{epoch}.pt")


@distributed(world_size=2)
def test_files_larger_than_a_piece_arrive_whole(ddp: DDPContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reference.training.rank_zero._PIECE", 1000)
    training = Training()
    training.save(ddp.shared_path / "last.pt")
    expected = training.train(range(2))
    training.load(ddp.shared_path / "last.pt")
    assert_equal(training.train(range(2)), expected)


@distributed(world_size=2)
def test_a_save_that_fails_on_rank_0_raises_on_every_rank(ddp: DDPContext, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    training = Training()
    training.save(ddp.shared_path / "last.pt", epoch=1)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match=r"last\.pt was not written; .* No space left on device"):
            training.save(ddp.shared_path / "last.pt", epoch=2)
    assert training.load(ddp.shared_path / "last.pt") == 1


class Dies:
    """Saving it kills the process with half of the file written, as the SIGKILL of a job scheduler would."""

    def __reduce__(self) -> str:
        os._exit(9)


def saves_twice(path: str, *, dies: str) -> None:
    training = Training()
    training.save(Path(path), epoch=1)
    if dies == "while it writes":
        training.scheduler.__dict__.update(first=torch.zeros(1000), then=Dies())
    elif dist.get_rank() == 0:
        Path.replace = lambda *_: os._exit(9)  # type: ignore[assignment,method-assign]
    training.save(Path(path), epoch=2)


@pytest.mark.parametrize("moment", ["while it writes", "before it renames"])
def test_a_crash_while_saving_leaves_the_old_checkpoint(
    ddp_ranks: Callable[..., Any], tmp_path: Path, moment: str
) -> None:
    path = tmp_path / "last.pt"
    with pytest.raises(RankFailure, match=r"rank 0 of 2 .*exit(ed)?"):
        ddp_ranks(world_size=2).run(saves_twice, str(path), dies=moment)
    assert {each.name for each in tmp_path.iterdir()} == {"last.pt", ".last.pt.partial"}
    assert load_checkpoint(path, dropping(), None, None) == 1
    save_checkpoint(path, module := dropping(), AdamW(module.parameters()), None, 3)
    assert load_checkpoint(path, module, None, None) == 3
    assert [each.name for each in tmp_path.iterdir()] == ["last.pt"]


# Checkpoints that do not fit


@distributed(world_size=2)
def test_a_missing_or_damaged_file_raises_the_same_on_every_rank(ddp: DDPContext) -> None:
    training, path = Training(), ddp.shared_path / "last.pt"
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint .* holds no files"):
        training.load(path)
    training.save(path)
    if ddp.rank == 0:
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"is damaged, or is not a checkpoint"):
        training.load(path)


@distributed(world_size=2)
def test_missing_objects_are_named(ddp: DDPContext) -> None:
    training, path = Training(), ddp.shared_path / "last.pt"
    save_checkpoint(path, training.model, training.optimizer, None, 0, scheduler=training.scheduler)
    with pytest.raises(CheckpointError, match=r"was saved without scaler, ema\. .*\. This one has scheduler$"):
        load_checkpoint(path, training.model, None, training.scaler, scheduler=training.scheduler, ema=training.model)


@distributed(world_size=2)
def test_another_model_is_refused_with_the_names_that_differ(ddp: DDPContext) -> None:
    training, path = Training(), ddp.shared_path / "last.pt"
    training.save(path)
    other = Training(make=mlp)
    with pytest.raises(CheckpointError, match=r"(?s)does not fit the objects to load\. RuntimeError.*Missing key"):
        other.load(path)
    with pytest.raises(CheckpointError, match=r"ValueError: loaded state dict contains a parameter group that"):
        load_checkpoint(path, training.model, AdamW([torch.zeros(1, requires_grad=True)]), None)
