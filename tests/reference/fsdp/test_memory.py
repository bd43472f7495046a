"""The memory that FSDP needs while layers compute, and between steps."""

import gc
from collections.abc import Iterator

import pytest
import torch
from fsdp_models import Telling
from fsdp_side_by_side import FSDP
from reference_models import DTYPE, linear
from side_by_side import sgd
from subgroups import subgroups_destroyed
from torch import Tensor, nn
from torch.optim import AdamW

from pytest_ddp import distributed


@distributed
@pytest.fixture(autouse=True)
def _subgroups() -> Iterator[None]:
    with subgroups_destroyed():
        yield


LAYERS, SIZE = 16, 64
LAYER_BYTES = 8 * SIZE * SIZE
PARTS_BYTES = LAYERS * LAYER_BYTES // 2  # on 2 ranks


def live_bytes() -> int:
    """The bytes of all tensors that Python knows of."""
    tensors = [one for one in gc.get_objects() if type(one) in (Tensor, nn.Parameter)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    return sum(storages.values())


@distributed(world_size=2)
@pytest.mark.parametrize("frozen", [False, True])
def test_only_the_layer_that_computes_and_the_next_one_are_whole(*, frozen: bool) -> None:
    gc.collect()
    before = live_bytes()
    module = nn.Sequential(*(Telling(SIZE, SIZE, bias=False, dtype=DTYPE) for _ in range(LAYERS)))
    module[1:].requires_grad_(not frozen)
    model = FSDP.wrap(module)
    inputs = torch.ones(1, SIZE, dtype=DTYPE)
    for _ in range(2):  # the second time, the order is known
        model.zero_grad()
        used: list[int] = []
        for layer in module:
            layer.tell = lambda used=used: used.append(live_bytes() - before - PARTS_BYTES)
        model(inputs).sum().backward()
        # Besides the two: the parts that they were gathered from, and memory that gloo has not freed yet.
        assert 2 * LAYER_BYTES <= max(used[:LAYERS]) <= 4 * LAYER_BYTES
        gradients = LAYER_BYTES // 2 if frozen else PARTS_BYTES
        under_way = 0 if frozen else 3 * LAYER_BYTES  # whole gradients
        assert max(used[LAYERS:]) <= gradients + under_way + 5 * LAYER_BYTES
        FSDP.after_backward(model, sgd(model))


@distributed(world_size=2)
def test_between_steps_a_rank_holds_its_parts_only() -> None:
    gc.collect()
    before = live_bytes()
    model = FSDP.wrap(nn.Sequential(*(linear(SIZE, SIZE) for _ in range(LAYERS))))
    optimizer = AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, SIZE, dtype=DTYPE)).sum().backward()
        FSDP.after_backward(model, optimizer)
        optimizer.step()
        biases, counters = LAYERS * SIZE * 8, 2 * LAYERS * 4
        expected = 4 * (PARTS_BYTES + biases) + counters  # each parameter, its gradient, two averages
        assert expected <= live_bytes() - before <= expected + LAYER_BYTES  # gloo may not have freed it yet
