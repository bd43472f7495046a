"""FSDP trains as one process would on the batches of all ranks."""

from collections.abc import Callable, Iterator

import pytest
from fsdp_side_by_side import Sharded
from reference_models import ODD_PARTS, Chain, around, mlp
from side_by_side import sgd
from subgroups import subgroups_destroyed
from torch import nn
from torch.optim import AdamW, Optimizer

from pytest_ddp import distributed


@distributed
@pytest.fixture(autouse=True)
def _subgroups() -> Iterator[None]:
    with subgroups_destroyed():
        yield


def adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=0.05, weight_decay=0.1, amsgrad=True)


@distributed(world_size=[1, 2, 3, 4])
@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
def test_training_equals_one_process_on_the_concatenated_batch(
    make_optimizer: Callable[[nn.Module], Optimizer],
) -> None:
    Sharded(mlp, make_optimizer, tolerance=1e-12).train(range(5))


@distributed(world_size=[2, 3])
@pytest.mark.parametrize("part", ODD_PARTS)
def test_every_kind_of_parameter_is_trained_as_in_one_process(part: str) -> None:
    Sharded(lambda: around(ODD_PARTS[part]())).train(range(3))


@distributed(world_size=3)
def test_a_parameter_unused_on_some_ranks_counts_as_zero_there() -> None:
    Sharded(Chain).train(range(4), use=lambda rank: [(0, 1), (0, 2)][rank % 2])
