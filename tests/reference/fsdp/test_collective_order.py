"""Which collectives FSDP launches, and when: read from records, never from a clock."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fsdp_models import Residual, Telling
from fsdp_side_by_side import FSDP, Sharded
from reference_models import DTYPE, INPUTS, Chain, linear, mlp
from side_by_side import batch, sgd
from subgroups import subgroups_destroyed
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_ddp import DDPContext, distributed
from pytest_ddp.observed import Delay, Schedule, Shuffled

GATHER, SCATTER = "all_gather_into_tensor", "reduce_scatter_tensor"


@distributed
@pytest.fixture(autouse=True)
def _subgroups() -> Iterator[None]:
    with subgroups_destroyed():
        yield


def elements(entries: Any) -> list[int]:
    return [entry.bytes // 8 for entry in entries]


@distributed(world_size=2, observe=True)
def test_a_step_gathers_each_matrix_twice_and_scatters_each_gradient_once(ddp: DDPContext) -> None:
    training = Sharded(mlp)
    training.train([0])
    with ddp.collectives.capture() as forward:
        local_loss = training.local_loss(1)
    with ddp.collectives.capture() as backward:
        local_loss.backward()
    with ddp.collectives.capture() as after:
        training.finish()
    assert [entry.op for entry in forward] == [GATHER] * 3
    assert sorted(entry.op for entry in backward) == [GATHER] * 3 + ["all_reduce"] + [SCATTER] * 3
    assert [entry.op for entry in after] == ["all_reduce"] * 2
    assert sum(elements(backward.select(SCATTER))) == 24 + 36 + 18
    ddp.collectives.assert_same_on_all_ranks()


@distributed(world_size=2, observe=True)
def test_while_a_layer_computes_the_next_one_is_gathered(ddp: DDPContext) -> None:
    module = nn.Sequential(*(Telling(4, 4, dtype=DTYPE) for _ in range(4)))
    seen: list[tuple[int, int]] = []

    def tell() -> None:
        gathers = ddp.collectives.select(GATHER)
        seen.append((len(gathers), sum(entry.waited is not None for entry in gathers)))

    for layer in module:
        layer.tell = tell
    model = FSDP.wrap(module)
    model(torch.ones(2, 4, dtype=DTYPE))  # now the order is known
    ddp.collectives.clear()
    model(torch.ones(2, 4, dtype=DTYPE)).sum().backward()
    assert seen[-8:-4] == [(2, 1), (3, 2), (4, 3), (4, 4)]
    assert seen[-4:] == [(6, 5), (7, 6), (8, 7), (8, 8)]
    FSDP.after_backward(model, sgd(model))


@distributed(world_size=2, observe=True)
def test_gradients_are_scattered_while_backward_computes_others(ddp: DDPContext) -> None:
    training = Sharded(lambda: nn.Sequential(*(linear(INPUTS, INPUTS) for _ in range(5)), linear(INPUTS, 3)))
    training.train([0, 1])
    scatters = [*ddp.collectives.select(SCATTER)][6:]
    ddp.collectives.select(SCATTER)[6:11].assert_launched_before_last_gradient()
    for one, other, another in zip(scatters, scatters[1:], scatters[2:], strict=False):
        assert one.launched.ready < other.launched.ready <= one.waited.ready
        assert one.waited.time < another.launched.time  # so at most two whole gradients are alive
    assert {entry.ranks for entry in scatters} == {(0, 1)}


@distributed(world_size=2, observe=True)
def test_an_unused_parameter_delays_no_other(ddp: DDPContext) -> None:
    training = Sharded(Chain)
    training.train([0])
    training.train([1], use=lambda _: (0, 2))
    scatters = [*ddp.collectives.select(SCATTER)][5:]
    assert [entry.launched.ready < entry.launched.expected for entry in scatters] == [True] * 4 + [False]


@distributed(world_size=2, observe=True)
def test_a_returned_input_causes_no_gather_in_backward(ddp: DDPContext) -> None:
    training = Sharded(Residual)
    training.train([0])
    local_loss = training.local_loss(1)
    with ddp.collectives.capture() as backward:
        local_loss.backward()
    training.finish()
    backward.select(GATHER).assert_count(3)


@distributed(world_size=2, observe=True)
def test_with_activation_checkpointing_each_gradient_is_sent_once(ddp: DDPContext) -> None:
    training = Sharded(mlp)
    outputs = checkpoint(training.ddp_model, batch(0, ddp.rank)[0], use_reentrant=False)
    with ddp.collectives.capture() as backward:
        outputs.sum().backward()
    training.finish()
    backward.select(SCATTER).assert_count(3)


def recorded(ddp: DDPContext, training: Sharded, use: Callable[[int], tuple[int, ...]]) -> dict[str, list[Any]]:
    """The collectives of each group of this rank in one step."""
    training.zero_grad()
    with ddp.collectives.capture() as entries:
        training.local_loss(0, use=use).backward()
        training.finish()
    groups: dict[str, list[Any]] = {}
    for entry in entries:
        groups.setdefault(entry.group, []).append((entry.op, entry.shapes))
    return groups


@distributed(world_size=2, observe=True)
def test_the_collectives_depend_neither_on_the_rank_nor_on_the_parameters_used(ddp: DDPContext) -> None:
    training = Sharded(Chain)
    training.train([0])
    ways = [lambda _: (0, 1, 2), lambda rank: [(0,), (2, 1)][rank], lambda _: ()]
    sent = [recorded(ddp, training, use) for use in ways]
    assert sent[0] == sent[1] == sent[2]
    of_ranks: list[Any] = [None, None]
    dist.all_gather_object(of_ranks, sent)
    assert of_ranks[0] == of_ranks[1]


@distributed(world_size=2, observe=True)
def test_the_order_is_that_of_the_first_forward_of_rank_0(ddp: DDPContext) -> None:
    training = Sharded(Chain)  # which registers its last layer first
    training.train([0], use=lambda rank: [(2, 1), (1, 2)][rank])
    with ddp.collectives.capture() as entries:
        training.local_loss(1, use=lambda _: (1, 2)).backward()
    training.finish()
    assert elements(entries.select(GATHER)) == [12, 18, 18, 9, 18, 9, 18, 18, 12, 18]
    assert elements(entries.select(SCATTER)) == [18, 36, 36, 24, 36]


@distributed(world_size=2, observe=True)
@pytest.mark.parametrize("schedule", [Shuffled(1), Shuffled(2), Delay(3), Delay(8)], ids=str)
def test_collectives_may_complete_in_any_order(ddp: DDPContext, schedule: Schedule) -> None:
    training = Sharded(lambda: nn.Sequential(linear(INPUTS), linear(), linear(), linear(), linear(6, 3)))
    for step in range(2):
        training.zero_grad()
        with ddp.collectives.gate(schedule):
            local_loss = training.local_loss(step)
            local_loss.backward()
            training.finish()
        training.twin_backward(step)
        training.update()
    ddp.collectives.unawaited.assert_count(0)
