"""To normalize over the ranks' batches equals normalizing the concatenated batch, in forward and backward."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from reference_wrappers import WRAPPERS
from torch import Tensor, nn

from pytest_ddp import DDPContext, distributed
from pytest_ddp.operations.fingerprint import Fingerprint
from pytest_ddp.rank.collective_hooks import watch_collectives
from reference.adapters import convert_sync_batchnorm
from reference.training.sync_batchnorm import SyncBatchNorm

CHANNELS = 3
SIZES = {1: [5], 2: [5, 2], 3: [1, 4, 0], 4: [2, 0, 1, 3]}  # samples per rank
LAYERS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "1d": (nn.BatchNorm1d, ()),
    "1d over a sequence": (nn.BatchNorm1d, (4,)),
    "2d": (nn.BatchNorm2d, (2, 3)),
    "3d": (nn.BatchNorm3d, (2, 1, 2)),
}
OPTIONS = [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}, {"eps": 0.1, "momentum": 0.5}]


def data(rank: int, step: int, shape: tuple[int, ...], size: int) -> tuple[Tensor, Tensor]:
    """Inputs and gradients of outputs. The mean is much larger than the deviations."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    full = (size, CHANNELS, *shape)
    x = torch.randn(full, generator=generator, dtype=torch.float64) * (1 + rank) + 100
    return x, torch.randn(full, generator=generator, dtype=torch.float64)


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    scale = max(float(expected.detach().abs().max()) if expected.numel() else 0.0, 1.0)
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance * scale)


@distributed(world_size=[1, 2, 3, 4])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", LAYERS)
def test_it_equals_one_process_on_the_concatenated_batch(kind, options, ddp: DDPContext):
    make, shape = LAYERS[kind]
    sizes = SIZES[ddp.world_size]
    twin = make(CHANNELS, dtype=torch.float64, **options)
    if twin.affine:
        nn.init.uniform_(twin.weight)
        nn.init.uniform_(twin.bias)
    layer = convert_sync_batchnorm(copy.deepcopy(twin))
    for step in range(2):
        parts = [data(rank, step, shape, size) for rank, size in enumerate(sizes)]
        whole = torch.cat([x for x, _ in parts]).requires_grad_()
        expected = twin(whole)
        expected.backward(torch.cat([gradient for _, gradient in parts]))
        mine = parts[ddp.rank][0].clone().requires_grad_()
        seen = layer(mine)
        seen.backward(parts[ddp.rank][1])
        close(seen.detach(), expected.detach().split(sizes)[ddp.rank], 1e-11)
        close(mine.grad, whole.grad.split(sizes)[ddp.rank], 1e-11)
    for parameter, twins in zip(layer.parameters(), twin.parameters(), strict=True):
        dist.all_reduce(parameter.grad)
        close(parameter.grad, twins.grad, 1e-11)
    for buffer, twins in zip(layer.buffers(), twin.buffers(), strict=True):
        close(buffer, twins)
    x = data(0, 9, shape, 4)[0]
    close(layer.eval()(x), twin.eval()(x), 1e-11)


@distributed(world_size=2)
@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
def test_a_wrapped_model_trains_as_one_process_on_the_whole_batch(wrapper, ddp: DDPContext):
    torch.manual_seed(0)
    twin = nn.Sequential(nn.Conv2d(2, CHANNELS, 2), nn.BatchNorm2d(CHANNELS), nn.Flatten(), nn.Linear(12, 2)).double()
    model = convert_sync_batchnorm(copy.deepcopy(twin))
    wrapped = wrapper.wrap(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin)]
    for _ in range(3):
        x = torch.randn(6, 2, 3, 3, dtype=torch.float64)
        dist.broadcast(x, src=0)
        for optimizer in optimizers:
            optimizer.zero_grad()
        wrapper.before_batch(wrapped, optimizers[0])
        wrapped(x[3 * ddp.rank :][:3]).square().mean().backward()
        wrapper.after_backward(wrapped, optimizers[0])
        twin(x).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    for mine, twins in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        close(mine, twins)


@distributed(world_size=2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_statistics_of_half_inputs_are_in_float32(dtype, ddp: DDPContext):
    layer, twin = convert_sync_batchnorm(nn.BatchNorm1d(1)), nn.BatchNorm1d(1)
    x = torch.arange(600, dtype=torch.float32).view(-1, 1).to(dtype)  # their sum overflows float16
    mine = x[300 * ddp.rank :][:300]
    seen = layer(mine)
    assert seen.dtype == dtype
    expected = twin(x.float())[300 * ddp.rank :][:300]
    torch.testing.assert_close(seen.float(), expected, rtol=0, atol=2 * torch.finfo(dtype).eps)
    torch.testing.assert_close(layer.running_mean, twin.running_mean)


@distributed(world_size=2)
def test_the_memory_format_stays():
    layer = convert_sync_batchnorm(nn.BatchNorm2d(CHANNELS))
    x = torch.randn(2, CHANNELS, 4, 4).contiguous(memory_format=torch.channels_last).requires_grad_()
    y = layer(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    y.sum().backward()
    assert x.grad.is_contiguous(memory_format=torch.channels_last)


@distributed(world_size=2)
def test_one_collective_each_way_and_none_in_eval_mode():
    layer = convert_sync_batchnorm(nn.BatchNorm1d(CHANNELS))
    seen = list[Fingerprint]()
    with watch_collectives(seen.append):
        y = layer(torch.randn(4, CHANNELS, requires_grad=True))
        y.sum().backward()
        layer.eval()(torch.randn(4, CHANNELS))
    assert [one.op for one in seen] == ["all_gather", "all_reduce"]


@distributed(world_size=2)
def test_without_running_statistics_each_rank_evaluates_by_its_own_batch(ddp: DDPContext):
    layer = convert_sync_batchnorm(nn.BatchNorm1d(CHANNELS, track_running_stats=False)).eval()
    if ddp.rank == 0:  # on one rank alone, where a collective would hang
        x = torch.randn(4, CHANNELS)
        torch.testing.assert_close(layer(x), nn.BatchNorm1d(CHANNELS)(x))


@distributed(world_size=2)
@pytest.mark.parametrize("absent", ["weight", "bias"])
def test_a_layer_may_have_only_one_of_weight_and_bias(absent, ddp: DDPContext):
    twin = nn.BatchNorm1d(CHANNELS)
    setattr(twin, absent, None)
    layer = convert_sync_batchnorm(copy.deepcopy(twin))
    x = torch.randn(6, CHANNELS)
    dist.broadcast(x, src=0)
    twin(x).square().sum().backward()
    layer(x[3 * ddp.rank :][:3]).square().sum().backward()
    for parameter, twins in zip(layer.parameters(), twin.parameters(), strict=True):
        dist.all_reduce(parameter.grad)
        torch.testing.assert_close(parameter.grad, twins.grad)


@distributed(world_size=2)
def test_other_numbers_of_channels_are_refused():
    layer = convert_sync_batchnorm(nn.BatchNorm1d(1, track_running_stats=False))
    with pytest.raises(RuntimeError, match="should contain 3 elements not 1"):
        layer(torch.randn(2, 3))


@distributed(world_size=2)
def test_too_few_values_are_refused_on_every_rank(ddp: DDPContext):
    layer = convert_sync_batchnorm(nn.BatchNorm1d(CHANNELS))
    with pytest.raises(ValueError, match=r"got 1 value per channel on all ranks together .* needs at least 2"):
        layer(torch.randn(1 - ddp.rank, CHANNELS))
    assert layer(torch.randn(1, CHANNELS)).shape == (1, CHANNELS), "one on each rank is two"


def test_conversion_keeps_the_layers_with_their_parameters_and_hooks():
    shared = nn.BatchNorm1d(CHANNELS)
    model = nn.Sequential(shared, nn.Sequential(nn.SyncBatchNorm(CHANNELS), shared), nn.LayerNorm(CHANNELS))
    model.eval()
    shared.weight.requires_grad_(requires_grad=False)
    calls = []
    shared.register_forward_hook(lambda *_: calls.append(1))
    before = {name: id(value) for name, value in (*model.named_parameters(), *model.named_buffers())}
    assert convert_sync_batchnorm(model) is model
    assert {name: id(value) for name, value in (*model.named_parameters(), *model.named_buffers())} == before
    assert model[0] is model[1][1] is shared
    assert [type(layer) for layer in (shared, model[1][0], model[2])] == [SyncBatchNorm, SyncBatchNorm, nn.LayerNorm]
    model(torch.randn(2, CHANNELS))
    assert len(calls) == 2
    assert not shared.training
    assert type(copy.deepcopy(convert_sync_batchnorm(model))[0]) is SyncBatchNorm, "converting twice does no harm"


def test_a_layer_of_a_derived_class_is_refused():
    class Special(nn.BatchNorm1d):
        pass

    with pytest.raises(TypeError, match="0 is a Special\\. convert_sync_batchnorm can replace only Batch"):
        convert_sync_batchnorm(nn.Sequential(Special(CHANNELS)))
    with pytest.raises(TypeError, match=r"the module is a LazyBatchNorm1d\. .* Initialize a lazy layer first"):
        convert_sync_batchnorm(nn.LazyBatchNorm1d())


def test_an_input_without_channels_is_refused():
    with pytest.raises(ValueError, match=r"got a tensor of shape \(3,\); expected \(batch, channels, ...\)"):
        convert_sync_batchnorm(nn.BatchNorm1d(CHANNELS))(torch.randn(3))


@distributed(world_size=2)
def test_differentiating_twice_is_refused():
    x = torch.randn(4, CHANNELS, requires_grad=True)
    y = convert_sync_batchnorm(nn.BatchNorm1d(CHANNELS))(x)
    with pytest.raises(RuntimeError, match=r"has no second derivatives, .* create_graph=True, .* into eval mode"):
        torch.autograd.grad(y.square().sum(), x, create_graph=True)


def test_a_single_process_has_ordinary_batch_norm_to_the_last_bit():
    twin = nn.BatchNorm2d(CHANNELS)
    layer = convert_sync_batchnorm(copy.deepcopy(twin))
    x = torch.randn(4, CHANNELS, 2, 2)
    assert torch.equal(layer(x), twin(x))
    assert torch.equal(layer.running_var, twin.running_var)


@distributed(world_size=2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_inputs_are_saved_for_backward_in_half_precision(dtype):
    kept: list[Tensor] = []
    x = torch.randn(4, CHANNELS, 5, dtype=dtype, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        convert_sync_batchnorm(nn.BatchNorm1d(CHANNELS))(x).sum().backward()
    assert {t.dtype for t in kept if t.numel() == x.numel()} == {dtype}
    assert x.grad.dtype == dtype
