"""A training that is saved and loaded goes on as if nothing had happened, whatever it is loaded into."""

import errno
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from reference_models import DTYPE, INPUTS, linear, mlp, seeded
from reference_wrappers import NAIVE, WRAPPERS, Wrapper
from side_by_side import assert_close, assert_same_on_all_ranks, batch, loss
from subgroups import subgroups_destroyed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR

from pytest_ddp import DDPContext, RankFailure, distributed
from reference.checkpoint import load_checkpoint, save_checkpoint
from reference.checkpoint_file import CheckpointError
from reference.fsdp import FSDP
from reference.sharded_optimizer import ShardedOptimizer

TORCH = Wrapper(DistributedDataParallel, lambda _model, _optimizer: None)


def dropping() -> nn.Module:
    """A model that draws random numbers, and has statistics."""
    return nn.Sequential(linear(INPUTS), nn.BatchNorm1d(6, dtype=DTYPE), nn.Dropout(0.5), nn.Tanh(), linear(6, 3))


class Training:
    """All that a checkpoint keeps, made anew: other weights on every rank, other random numbers."""

    def __init__(self, wrapper: Wrapper = NAIVE, *, sharded: bool = False, make: Callable[[], nn.Module] = dropping):
        self.wrapper, self.module = wrapper, seeded(make, seed=random.randrange(1000))  # noqa: S311
        self.model = wrapper.wrap(self.module)
        options = {"lr": 0.01, "betas": (0.8, 0.95)}
        parameters = list(self.model.parameters())
        self.optimizer: Optimizer = (
            ShardedOptimizer(parameters, AdamW, **options) if sharded else AdamW(parameters, **options)
        )
        self.scheduler = StepLR(self.optimizer, step_size=2, gamma=0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0, growth_interval=3)

    def train(self, steps: Iterable[int]) -> list[Tensor]:
        """Train, and give the parameters and buffers that came out."""
        for step in steps:
            self.wrapper.before_batch(self.model, self.optimizer)
            self.optimizer.zero_grad()
            self.scaler.scale(loss(self.model, [batch(step, dist.get_rank())])).backward()
            self.wrapper.after_backward(self.model, self.optimizer)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
        return [value.clone() for value in self.module.state_dict().values()]

    def save(self, path: Path, epoch: int = 7) -> None:
        save_checkpoint(path, self.model, self.optimizer, self.scaler, epoch, scheduler=self.scheduler)

    def load(self, path: Path) -> int:
        return load_checkpoint(path, self.model, self.optimizer, self.scaler, scheduler=self.scheduler)


def seed_generators() -> None:
    """Every rank draws numbers of its own."""
    random.seed(dist.get_rank())
    torch.manual_seed(dist.get_rank())
    np.random.seed(dist.get_rank())  # noqa: NPY002


def assert_equal(mine: list[Tensor], others: list[Tensor]) -> None:
    assert len(mine) == len(others)
    for one, other in zip(mine, others, strict=True):
        assert torch.equal(one, other)


@distributed(world_size=[2, 4])
@pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
@pytest.mark.parametrize("wrapper", [*WRAPPERS.values(), TORCH], ids=[*WRAPPERS, "torch"])
def test_training_resumes_to_the_last_bit(wrapper: Wrapper, sharded: bool, ddp: DDPContext) -> None:  # noqa: FBT001
    seed_generators()
    training = Training(wrapper, sharded=sharded)
    training.train(range(3))
    training.save(ddp.shared_path / "last.pt")
    expected = training.train(range(3, 6)), training.scheduler.get_last_lr(), training.scaler.get_scale()
    assert training.scaler.get_scale() == 8.0  # it has grown twice: the count of good steps was kept

    resumed = Training(wrapper, sharded=sharded)
    assert resumed.load(ddp.shared_path / "last.pt") == 7
    assert_equal(resumed.train(range(3, 6)), expected[0])
    assert (resumed.scheduler.get_last_lr(), resumed.scaler.get_scale()) == expected[1:]
    assert_same_on_all_ranks(resumed.module.parameters())


@distributed(world_size=2)
def test_every_generator_of_every_rank_goes_on_where_it_was(ddp: DDPContext) -> None:
    def draw() -> list[float]:
        return [random.random(), torch.rand(()).item(), np.random.rand(), random.gauss(0, 1), np.random.normal()]  # noqa: NPY002, S311

    seed_generators()
    training = Training()
    draw()  # half of a pair of normal numbers is left over
    training.save(ddp.shared_path / "last.pt")
    expected = draw()
    training.load(ddp.shared_path / "last.pt")
    assert draw() == expected
    drawn: list[list[float]] = [[], []]
    dist.all_gather_object(drawn, expected)
    assert all(one != other for one, other in zip(*drawn, strict=True))


# Elsewhere


def fitted(path: str, *, sharded: bool, save: bool) -> tuple[dict[str, Tensor], dict[str, Any], Tensor]:
    """Train and save, or load; the model's state, the whole optimizer's, and what the generator draws next."""
    torch.manual_seed(99)
    training = Training(sharded=sharded)
    if save:
        training.train(range(2))
        training.save(Path(path))
    else:
        torch.manual_seed(99)
        training.load(Path(path))
    if sharded:
        training.optimizer.consolidate_state_dict(to=0)
    return training.module.state_dict(), training.optimizer.state_dict(), torch.rand(3)


@pytest.mark.parametrize(("saved_sharded", "loaded_sharded"), [(True, True), (True, False), (False, True)])
def test_it_loads_on_another_number_of_ranks(
    ddp_ranks: Callable[..., Any], tmp_path: Path, *, saved_sharded: bool, loaded_sharded: bool
) -> None:
    path = str(tmp_path / "last.pt")
    saved, *_ = ddp_ranks(world_size=3).run(fitted, path, sharded=saved_sharded, save=True)
    for world_size in (1, 2, 4):
        loaded = ddp_ranks(world_size=world_size).run(fitted, path, sharded=loaded_sharded, save=False)
        for model, _, _ in loaded:
            assert_equal(list(model.values()), list(saved[0].values()))
        assert_same_states(loaded[0][1]["state"], saved[1]["state"])
        torch.manual_seed(99)
        assert torch.equal(loaded[0][2], torch.rand(3))  # as the caller has seeded it


def assert_same_states(mine: dict[int, Any], saved: dict[int, Any]) -> None:
    assert list(mine) == list(saved)
    for number, state in saved.items():
        assert_equal(list(mine[number].values()), list(state.values()))


def test_one_process_without_a_group_loads_and_saves_too(ddp_ranks: Callable[..., Any], tmp_path: Path) -> None:
    path = str(tmp_path / "last.pt")
    saved, _ = ddp_ranks(world_size=2).run(fitted, path, sharded=True, save=True)
    bare = dropping()
    assert load_checkpoint(path, bare, None, None) == 7  # for evaluation
    assert_equal(list(bare.state_dict().values()), list(saved[0].values()))
    optimizer = AdamW(bare.parameters())
    load_checkpoint(path, bare, optimizer, None)
    save_checkpoint(path, bare, optimizer, None, 9)
    other = dropping()
    assert load_checkpoint(path, other, AdamW(other.parameters()), None) == 9
    assert_equal(list(other.state_dict().values()), list(saved[0].values()))


@distributed(world_size=2)
def test_wrapped_and_bare_models_and_wrappers_in_wrappers_exchange_checkpoints(ddp: DDPContext) -> None:
    path, module = ddp.shared_path / "last.pt", seeded(dropping, seed=0)
    optimizer = AdamW(module.parameters())

    def wrappings() -> list[nn.Module]:
        return [
            dropping(),
            DistributedDataParallel(dropping()),
            NAIVE.wrap(dropping()),
            DistributedDataParallel(nn.Sequential(dropping())[0]),
            WRAPPERS["ddp"].wrap(NAIVE.wrap(dropping())),
        ]

    save_checkpoint(path, module, optimizer, None, 0)
    for source in wrappings():
        load_checkpoint(path, source, None, None)
        save_checkpoint(path, source, optimizer, None, 0)
        for target in wrappings():
            load_checkpoint(path, target, None, None)
            assert_equal(list(target.state_dict().values()), list(module.state_dict().values()))


@distributed(world_size=3)
def test_an_fsdp_training_is_saved_whole_and_resumed_to_the_last_bit(ddp: DDPContext) -> None:
    with subgroups_destroyed():
        fsdp_resumes(ddp.shared_path / "last.pt")


def fsdp_resumes(path: Path) -> None:
    fsdp = Wrapper(FSDP, lambda model, _optimizer: model.finish_gradient_synchronization())
    training = Training(fsdp, make=mlp)
    training.train(range(2))
    training.save(path)
    whole = training.model.full_state_dict()
    expected = training.train(range(2, 4))
    resumed, bare = Training(fsdp, make=mlp), Training(make=mlp)
    resumed.load(path)
    bare.load(path)
    assert_equal([*whole.values()], [*bare.module.state_dict().values()])
    assert_equal(resumed.train(range(2, 4)), expected)
    alone = bare.train(range(2, 4))
    for mine, other in zip(resumed.model.full_state_dict().values(), alone, strict=True):
        assert_close(mine, other, 1e-12, "after resuming as data-parallel training")


# Who writes, and what if it fails


@distributed(world_size=3)
def test_rank_0_alone_touches_the_disk_and_all_wait_for_it(ddp: DDPContext, monkeypatch: pytest.MonkeyPatch) -> None:
    if ddp.rank != 0:
        monkeypatch.setattr("reference.checkpoint.write_checkpoint_file", pytest.fail)
        monkeypatch.setattr("reference.checkpoint.read_checkpoint_file", pytest.fail)
    training = Training(sharded=True)
    for epoch in range(3):
        training.save(ddp.shared_path / f"{epoch}.pt")
        assert (ddp.shared_path / f"{epoch}.pt").exists()
        training.load(ddp.shared_path / f"{epoch}.pt")


@distributed(world_size=2)
def test_files_larger_than_a_piece_arrive_whole(ddp: DDPContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reference.rank_zero._PIECE", 1000)
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
    """Saving it ends the process as a scheduler's SIGKILL would: with half the file written."""

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


# What does not fit


@distributed(world_size=2)
def test_a_missing_or_damaged_file_raises_the_same_on_every_rank(ddp: DDPContext) -> None:
    training, path = Training(), ddp.shared_path / "last.pt"
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint .* holds no files"):
        training.load(path)
    training.save(path)
    if ddp.rank == 0:
        path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"is damaged, or no checkpoint"):
        training.load(path)


@distributed(world_size=2)
def test_parts_that_are_asked_for_and_missing_are_named(ddp: DDPContext) -> None:
    training, path = Training(), ddp.shared_path / "last.pt"
    save_checkpoint(path, training.model, training.optimizer, None, 0, scheduler=training.scheduler)
    with pytest.raises(CheckpointError, match=r"was saved without scaler, ema: .*\. It has scheduler$"):
        load_checkpoint(path, training.model, None, training.scaler, scheduler=training.scheduler, ema=training.model)


@distributed(world_size=2)
def test_another_model_is_refused_with_the_names_that_differ(ddp: DDPContext) -> None:
    training, path = Training(), ddp.shared_path / "last.pt"
    training.save(path)
    other = Training(make=mlp)
    with pytest.raises(CheckpointError, match=r"(?s)does not fit what it is loaded into\. RuntimeError.*Missing key"):
        other.load(path)
    with pytest.raises(CheckpointError, match=r"ValueError: loaded state dict contains a parameter group that"):
        load_checkpoint(path, training.model, AdamW([torch.zeros(1, requires_grad=True)]), None)
