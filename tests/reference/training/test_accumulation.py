"""A step over microbatches equals a step over all of their samples at once."""

import pytest
import torch
from reference_models import mlp
from reference_wrappers import WRAPPERS, Wrapper
from side_by_side import SideBySide, batch, loss
from torch import nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel

from pytest_ddp import DDPContext, distributed
from pytest_ddp.operations.fingerprint import Fingerprint
from pytest_ddp.rank.collective_hooks import watch_collectives
from reference.adapters import accumulate_and_step

PARTS = 3
TORCH = Wrapper(DistributedDataParallel, lambda _model, _optimizer: None)
wrappers = pytest.mark.parametrize("wrapper", [*WRAPPERS.values(), TORCH], ids=[*WRAPPERS, "torch"])


def parts_of(rank: int, step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return microbatches of different sizes."""
    parts = enumerate(batch(PARTS * step + part, rank) for part in range(PARTS))
    return [(x[part:], y[part:]) for part, (x, y) in parts]


@distributed(world_size=[1, 2, 4])
@wrappers
def test_it_equals_one_process_on_all_microbatches_of_all_ranks(wrapper: Wrapper, ddp: DDPContext):
    training = SideBySide(mlp, wrapper=wrapper)
    for step in range(3):
        returned = accumulate_and_step(
            training.ddp_model, training.optimizer, parts_of(ddp.rank, step), nn.functional.mse_loss
        )
        training.twin_optimizer.zero_grad()
        everything = [one for rank in range(ddp.world_size) for one in parts_of(rank, step)]
        mine = loss(training.twin, parts_of(ddp.rank, step)).detach()
        loss(training.twin, everything).backward()
        training.assert_gradients_equal()
        training.twin_optimizer.step()
        training.assert_parameters_equal()
        torch.testing.assert_close(returned, mine, rtol=1e-9, atol=0)


@distributed(world_size=2)
@wrappers
def test_only_the_last_microbatch_is_synchronized(wrapper: Wrapper, ddp: DDPContext):
    training = SideBySide(mlp, wrapper=wrapper)
    counts = []
    for number in (1, PARTS):
        for step in range(3):  # torch's DDP rebuilds its buckets after the first step
            seen = list[Fingerprint]()
            with watch_collectives(seen.append):
                mine = parts_of(ddp.rank, step)[:number]
                accumulate_and_step(training.ddp_model, training.optimizer, mine, nn.functional.mse_loss)
        counts.append(len(seen))
    assert counts[0] == counts[1]


@distributed(world_size=2)
def test_the_scaler_scales_and_steps_once(ddp: DDPContext):
    training = SideBySide(mlp, wrapper=WRAPPERS["naive_ddp"])
    scaler = GradScaler("cpu", init_scale=8.0, growth_interval=1)
    accumulate_and_step(training.ddp_model, training.optimizer, parts_of(ddp.rank, 0), nn.functional.mse_loss, scaler)
    training.twin_optimizer.zero_grad()
    loss(training.twin, [one for rank in range(2) for one in parts_of(rank, 0)]).backward()
    training.twin_optimizer.step()
    training.assert_parameters_equal()
    assert scaler.get_scale() == 16.0, "one step, one growth"


def test_a_step_without_microbatches_is_refused():
    model = mlp()
    with pytest.raises(ValueError, match="got no microbatches"):
        accumulate_and_step(model, torch.optim.SGD(model.parameters(), lr=1.0), [], nn.functional.mse_loss)
