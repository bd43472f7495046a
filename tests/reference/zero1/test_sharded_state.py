"""The sharded optimizer's state is saved by shares or whole, loads under any world size, and can be copied."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from beside_unsharded import (
    BesideUnsharded,
    assert_states_equal,
    drawn,
    owned,
    parameters,
    two_groups,
    whole_state,
)
from side_by_side import assert_close
from torch import nn
from torch.optim import SGD, Adagrad, AdamW, NAdam, Optimizer

from pytest_ddp import DDPContext, distributed
from pytest_ddp.operations.fingerprint import Fingerprint
from pytest_ddp.rank.collective_hooks import watch_collectives
from reference.adapters import get_sharded_optimizer

CLASSES: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "sgd": (SGD, {"lr": 0.1, "momentum": 0.9}),
    "sgd_without_state": (SGD, {"lr": 0.1}),
    "adamw": (AdamW, {"lr": 0.02, "amsgrad": True}),
    "nadam": (NAdam, {"lr": 0.02}),  # keeps a product of its own per parameter
    "adagrad": (Adagrad, {"lr": 0.05}),  # has state before its first step
}


def trained(name: str = "adamw", steps: int = 2) -> BesideUnsharded:
    optimizer_cls, options = CLASSES[name]
    beside = BesideUnsharded(optimizer_cls, two_groups, **options)
    beside.train(range(steps))
    return beside


# The whole


@distributed(world_size=[1, 3])
@pytest.mark.parametrize("name", CLASSES)
def test_consolidated_it_is_the_unsharded_optimizers(name: str) -> None:
    beside = trained(name)
    state = whole_state(beside.sharded)
    assert_states_equal(state, beside.unsharded.state_dict())
    assert state.keys() == beside.unsharded.state_dict().keys()


@distributed(world_size=3)
def test_the_whole_is_on_the_rank_that_was_named(ddp: DDPContext) -> None:
    beside = trained()
    share = owned(beside.sharded)[ddp.rank]
    beside.sharded.consolidate_state_dict(to=1)
    numbers = sorted(beside.sharded.state_dict()["state"])
    assert numbers == (list(range(len(beside.mine))) if ddp.rank == 1 else share)


@distributed(world_size=2)
@pytest.mark.parametrize("change", ["step", "add", "load"])
def test_the_whole_is_not_given_once_it_is_out_of_date(change: str, ddp: DDPContext) -> None:
    beside = trained()
    share = beside.sharded.state_dict()
    beside.sharded.consolidate_state_dict(to=0)
    match change:
        case "step":
            beside.train([2])
        case "add":
            beside.sharded.add_param_group({"params": nn.Parameter(drawn(50, [2]))})
        case "load":
            beside.sharded.load_state_dict(share)
    assert beside.sharded.state_dict()["shard"] == {"rank": ddp.rank, "world_size": 2}


@distributed(world_size=2)
def test_the_whole_shows_options_as_they_are_and_a_state_that_stays() -> None:
    beside = trained()
    saved = whole_state(beside.sharded)
    before = copy.deepcopy(saved["state"])
    beside.sharded.param_groups[0]["lr"] = 0.7
    assert beside.sharded.state_dict()["param_groups"][0]["lr"] == 0.7
    beside.sharded.param_groups[0]["lr"] = 0.3
    beside.train([2])
    assert_states_equal({**saved, "state": saved["state"]}, {**saved, "state": before})


@distributed(world_size=2)
@pytest.mark.parametrize("name", CLASSES)
def test_it_is_exchanged_with_the_unsharded_optimizer(name: str) -> None:
    beside = trained(name)
    states = whole_state(beside.sharded), beside.unsharded.state_dict()
    beside.sharded, beside.unsharded = beside.new(), beside.new_unsharded()
    beside.sharded.load_state_dict(states[1])
    beside.unsharded.load_state_dict(states[0])
    beside.train(range(2, 4))
    if name != "sgd_without_state":
        assert sorted(number for share in owned(beside.sharded) for number in share) == list(range(len(beside.mine)))


def train(first: int, last: int, saved: bytes | None) -> bytes:
    """Train for some steps, from a checkpoint if there is one; return the checkpoint of rank 0."""
    these = parameters()
    optimizer = get_sharded_optimizer(two_groups(these), AdamW, lr=0.02)
    if saved is not None:
        loaded = torch.load(io.BytesIO(saved))
        for parameter, value in zip(these, loaded["parameters"], strict=True):
            parameter.data.copy_(value)
        optimizer.load_state_dict(loaded["optimizer"])
    for step in range(first, last):
        for number, parameter in enumerate(these):
            parameter.grad = drawn(100 * step + number, parameter.shape)
        optimizer.step()
    optimizer.consolidate_state_dict()
    written = io.BytesIO()
    torch.save({"parameters": [p.detach().clone() for p in these], "optimizer": optimizer.state_dict()}, written)
    return written.getvalue()


def test_training_resumes_with_another_number_of_ranks(ddp_ranks: Callable[..., Any]) -> None:
    [whole] = ddp_ranks(world_size=1).run(train, 0, 4, None)
    half, _ = ddp_ranks(world_size=2).run(train, 0, 2, None)
    resumed, *_ = ddp_ranks(world_size=3).run(train, 2, 4, half)
    mine, wanted = (torch.load(io.BytesIO(each)) for each in (resumed, whole))
    assert_states_equal(mine["optimizer"], wanted["optimizer"])
    for number, (one, other) in enumerate(zip(mine["parameters"], wanted["parameters"], strict=True)):
        assert_close(one, other, 1e-12, f"parameter {number}")


# Shares


@distributed(world_size=2)
@pytest.mark.parametrize("name", CLASSES)
def test_a_share_is_saved_and_loaded_without_communication(name: str, ddp: DDPContext) -> None:
    beside = trained(name)
    seen = list[Fingerprint]()
    new = beside.new()
    with watch_collectives(seen.append):
        saved = copy.deepcopy(beside.sharded.state_dict())
        new.load_state_dict(saved)
    assert not seen, f"on rank {ddp.rank}"
    beside.sharded = new
    beside.unsharded.load_state_dict(beside.unsharded.state_dict())  # torch rounds some of NAdam's state there
    beside.train(range(2, 4))


@distributed(world_size=2)
def test_the_share_of_another_rank_is_refused(ddp: DDPContext) -> None:
    beside = trained()
    share = {**beside.sharded.state_dict(), "shard": {"rank": 1 - ddp.rank, "world_size": 2}}
    message = (
        f"rank {ddp.rank} of 2 was given the share of rank {1 - ddp.rank} of 2: a share loads on its own rank of as "
        "many. To load elsewhere, call consolidate_state_dict"
    )
    with pytest.raises(ValueError, match=message):
        beside.sharded.load_state_dict(share)
    beside.train([2])


@distributed(world_size=2)
def test_a_share_of_other_parameters_is_refused(ddp: DDPContext) -> None:
    beside = trained()
    others = [number for number in range(len(beside.mine)) if number not in beside.sharded.state_dict()["state"]]
    share = beside.sharded.state_dict()
    share["state"] = {number: {"step": torch.tensor(1.0)} for number in others}
    message = rf"rank {ddp.rank} of 2 was given the state of parameters \[{', '.join(map(str, others))}\], which other"
    with pytest.raises(ValueError, match=message):
        beside.sharded.load_state_dict(share)


# Loading


@distributed(world_size=2)
@pytest.mark.parametrize("save", [whole_state, lambda optimizer: optimizer.state_dict()], ids=["whole", "share"])
def test_loading_neither_changes_nor_keeps_what_was_loaded(save: Callable[[Optimizer], dict[str, Any]]) -> None:
    beside = trained()
    saved = copy.deepcopy(save(beside.sharded))
    before = copy.deepcopy(saved)
    beside.sharded.load_state_dict(saved)
    beside.train([2])
    assert_states_equal(saved, before)


@distributed(world_size=2)
def test_loading_restores_options_and_keeps_only_this_ranks_state(ddp: DDPContext) -> None:
    beside = trained()
    beside.sharded.param_groups[0]["lr"] = 0.7
    saved = whole_state(beside.sharded)
    shares = owned(beside.sharded)
    beside.sharded = beside.new()
    beside.sharded.load_state_dict(saved)
    assert [group["lr"] for group in beside.sharded.param_groups] == [0.7, 0.02]
    beside.unsharded.param_groups[0]["lr"] = 0.7
    beside.train([2])
    assert owned(beside.sharded) == shares, f"on rank {ddp.rank}"


@distributed(world_size=2)
def test_state_for_other_groups_is_refused_as_by_torch() -> None:
    beside = trained()
    saved = whole_state(beside.sharded)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        get_sharded_optimizer(parameters(), AdamW, lr=0.02).load_state_dict(saved)
