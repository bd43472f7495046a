"""FSDP's whole state, clipping, mixed precision, and its numbers beside those of torch's own."""

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from fsdp_models import HeadIsEmbedding
from fsdp_side_by_side import Sharded, whole
from reference_models import INPUTS, Buffered, every_odd_part, linear, mlp, seeded
from side_by_side import assert_close, batch, sgd
from subgroups import subgroups_destroyed
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim import SGD

from pytest_ddp import DDPContext, distributed
from reference import adapters


@distributed
@pytest.fixture(autouse=True)
def _subgroups() -> Iterator[None]:
    with subgroups_destroyed():
        yield


# The whole state


@distributed(world_size=3)
@pytest.mark.parametrize("make_model", [mlp, Buffered, HeadIsEmbedding, every_odd_part])
def test_the_whole_state_loads_into_the_bare_module_and_back(make_model: type[nn.Module], ddp: DDPContext) -> None:
    model = adapters.get_fsdp(seeded(make_model, seed=ddp.rank))
    state, original = model.full_state_dict(), seeded(make_model, seed=0)
    bare = seeded(make_model, seed=7)
    bare.load_state_dict(state)
    assert_equal(bare.state_dict(), original.state_dict())
    assert_equal(adapters.fsdp_gather_full_params(model), dict(original.named_parameters(remove_duplicate=False)))
    other = seeded(make_model, seed=8).state_dict()
    before = copy.deepcopy(other)
    model.load_full_state_dict(other)
    assert_equal(model.full_state_dict(), before)
    assert_equal(other, before)


def assert_equal(state: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(state[name].detach(), value.detach(), rtol=0, atol=0, equal_nan=True)


@distributed(world_size=2)
def test_training_goes_on_from_a_loaded_state() -> None:
    training = Sharded(mlp, lambda model: SGD(model.parameters(), lr=0.1))
    training.train([0])
    training.ddp_model.load_full_state_dict(seeded(mlp, seed=9).state_dict())
    training.twin.load_state_dict(seeded(mlp, seed=9).state_dict())
    training.train([1, 2])


@distributed(world_size=2)
def test_a_state_of_another_shape_is_refused() -> None:
    model = adapters.get_fsdp(linear(4, 6))
    said = r"weight has the shape \[4, 6\] in the state dict and \[6, 4\] in the module: load the state_dict of"
    with pytest.raises(ValueError, match=said):
        model.load_full_state_dict(linear(6, 4).state_dict())


# Clipping


@distributed(world_size=3)
@pytest.mark.parametrize("max_norm", [0.01, 100.0])
def test_clipping_is_by_the_norm_over_all_ranks(max_norm: float) -> None:
    training = Sharded(HeadIsEmbedding)
    for step in range(2):
        training.zero_grad()
        training.backward(step)
        norm = training.ddp_model.clip_grad_norm(max_norm)
        twins = nn.utils.clip_grad_norm_(training.twin.parameters(), max_norm)
        assert_close(norm, twins.detach(), 1e-12, "norm")
        training.update()


# Mixed precision


class Normed(nn.Module):
    """Layers that compute in the dtype asked for, and a norm that computes in its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(INPUTS, 8), nn.LayerNorm(8), nn.Linear(8, 3, bias=False)
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        normed = self.norm(torch.tanh(hidden))
        outputs = self.last(normed)
        self.seen = [hidden.dtype, normed.dtype, outputs.dtype, self.first.weight.dtype]
        return outputs


def gradients_of_a_rank(master: nn.Module, rank: int, step: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Gradients, in `dtype`, of a copy whose layers are rounded to it, on the batch of a rank."""
    model = copy.deepcopy(master)
    model.first.to(dtype)
    model.last.to(dtype)
    inputs, targets = (tensor.float() for tensor in batch(step, rank))
    hidden = torch.tanh(model.first(inputs.to(dtype)))
    outputs = model.last(model.norm(hidden.float()).to(dtype))
    nn.functional.mse_loss(outputs.float(), targets).backward()
    return {name: p.grad.float() for name, p in model.named_parameters()}


@distributed(world_size=[2, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_computing_in_less_precision_rounds_as_one_process_would(dtype: torch.dtype, ddp: DDPContext) -> None:
    """Sums of W float32 numbers, here in an order of gloo's, differ by less than W units of roundoff."""
    module, master = seeded(Normed, seed=ddp.rank), seeded(Normed, seed=0)
    model = adapters.get_fsdp(module, compute_dtype=dtype)
    optimizer, twin_optimizer = sgd(model), sgd(master)
    for step in range(3):
        inputs, targets = (tensor.float() for tensor in batch(step, ddp.rank))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs).float(), targets).backward()
        assert module.seen == [dtype, torch.float32, dtype, torch.float32]
        adapters.fsdp_on_after_backward(model, optimizer)
        of_ranks = [gradients_of_a_rank(master, rank, step, dtype) for rank in range(ddp.world_size)]
        for (name, twins), mine in zip(master.named_parameters(), model.parameters(), strict=True):
            parts = torch.stack([gradients[name] for gradients in of_ranks]) / ddp.world_size
            twins.grad = parts.sum(0)
            assert (mine.grad.dtype, mine.dtype) == (torch.float32, torch.float32)
            difference = (whole(mine.grad, twins) - twins.grad).abs()
            assert (difference <= ddp.world_size * 2**-24 * parts.abs().sum(0)).all(), name
            with torch.no_grad():  # so that the next step starts from the same bits
                twins.grad = whole(mine.grad, twins)
        optimizer.step()
        twin_optimizer.step()
        for (name, twins), mine in zip(master.named_parameters(), model.parameters(), strict=True):
            assert torch.equal(whole(mine.detach(), twins), twins.detach()), name


@distributed(world_size=2, observe=True)
def test_parameters_travel_in_the_dtype_to_compute_in(ddp: DDPContext) -> None:
    model = adapters.get_fsdp(Normed(), compute_dtype=torch.bfloat16)
    model(torch.ones(2, INPUTS)).sum().backward()
    adapters.fsdp_on_after_backward(model, sgd(model))
    assert {entry.dtype for entry in ddp.collectives.select("all_gather_into_tensor")} == {"bfloat16"}
    assert {entry.dtype for entry in ddp.collectives.select("reduce_scatter_tensor")} == {"float32"}


@distributed(world_size=2)
def test_float32_training_is_that_of_one_process() -> None:
    training = Sharded(mlp)
    training.ddp_model = adapters.get_fsdp(seeded(mlp, seed=dist.get_rank()).float())
    training.module, training.twin = training.ddp_model.module, training.twin.float()
    training.optimizer, training.twin_optimizer = sgd(training.module), sgd(training.twin)
    ranks = range(dist.get_world_size())
    for step in range(3):
        training.zero_grad()
        batches = [[tensor.float() for tensor in batch(step, rank)] for rank in ranks]
        inputs, targets = batches[dist.get_rank()]
        nn.functional.mse_loss(training.ddp_model(inputs), targets).backward()
        training.finish()
        outputs = training.twin(torch.cat([inputs for inputs, _ in batches]))
        nn.functional.mse_loss(outputs, torch.cat([targets for _, targets in batches])).backward()
        training.update()


# Beside torch's own


def fully_sharded(module: nn.Module, policy: MixedPrecisionPolicy) -> nn.Module:
    # Where there are GPUs, torch takes them unless it is given a mesh, and makes a group for a mesh that is given none.
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    return fully_shard(module, mesh=mesh, mp_policy=policy)


@distributed(world_size=[2, 3])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_its_numbers_are_those_of_fully_shard(dtype: torch.dtype | None, ddp: DDPContext) -> None:
    policy = MixedPrecisionPolicy() if dtype is None else MixedPrecisionPolicy(dtype, torch.float64)
    model, torchs = adapters.get_fsdp(seeded(mlp, seed=0), dtype), fully_sharded(seeded(mlp, seed=0), policy)
    for optimizer, one in ((sgd(model), model), (sgd(torchs), torchs)):
        for step in range(3):
            inputs, targets = batch(step, ddp.rank)
            optimizer.zero_grad()
            nn.functional.mse_loss(one(inputs).double(), targets).backward()
            if one is model:
                adapters.fsdp_on_after_backward(model, optimizer)
            optimizer.step()
    for mine, theirs in zip(adapters.fsdp_gather_full_params(model).values(), torchs.parameters(), strict=True):
        assert_close(mine, theirs.full_tensor().detach(), 1e-12, "parameter")
