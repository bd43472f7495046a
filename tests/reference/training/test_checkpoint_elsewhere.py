"""A checkpoint fits other numbers of ranks, other wrappers, the bare module and a process without ranks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpointed import Training, assert_equal, dropping
from reference_models import mlp, seeded
from reference_wrappers import NAIVE, WRAPPERS, Wrapper
from side_by_side import assert_close
from subgroups import subgroups_destroyed
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from pytest_ddp import DDPContext, distributed
from reference.fsdp.fsdp import FSDP
from reference.training.checkpoint import load_checkpoint, save_checkpoint


def fitted(path: str, *, sharded: bool, save: bool) -> tuple[dict[str, Tensor], dict[str, Any], Tensor]:
    """Train and save, or load. Returns the states of model and optimizer, and the next number of the generator."""
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
def test_it_can_be_loaded_on_another_number_of_ranks(
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
        assert torch.equal(loaded[0][2], torch.rand(3))  # as the caller seeded it


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
