"""Trains with every data-parallel feature of torch; the result must not depend on observing."""

import itertools
import pickle
import warnings
from collections.abc import Callable, Iterable
from unittest import mock

import torch
import torch.distributed as dist
from observed_operations import plain
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks import (
    _hook_then_optimizer,
    _OptimizerHookState,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from pytest_ddp import observed
from pytest_ddp.observed.recording import current

STEPS = 3
PROGRAMS: dict[str, Callable[[], object]] = {}
Step = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def run(body: bytes) -> bytes:
    """Return the result of a program, its entries and its events."""
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations
        found = plain(PROGRAMS[body.decode()]())
    if not current.is_observed():
        return pickle.dumps((found, [], []))
    return pickle.dumps((found, list(observed.collectives()), list(observed.collectives().events)))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)
    )


def batches(steps: int = STEPS) -> Iterable[torch.Tensor]:
    numbers = torch.Generator().manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    return [torch.randn(8, 6, generator=numbers) for _ in range(steps)]


def loss_of(wrapped: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    return wrapped(inputs).pow(2).mean()


def train(wrapped: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> object:
    optimizer = optimizer or torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for inputs in batches():
        optimizer.zero_grad()
        losses.append(loss := loss_of(wrapped, inputs))
        loss.backward()
        optimizer.step()
    return losses, state(wrapped)


def state(wrapped: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for name, tensor in wrapped.state_dict().items()
    }


@program
def ddp():
    return train(DistributedDataParallel(model()))


@program
def ddp_small_buckets_as_views():
    return train(DistributedDataParallel(model(), bucket_cap_mb=0.0001, gradient_as_bucket_view=True))


@program
def ddp_static_graph():
    return train(DistributedDataParallel(model(), static_graph=True, bucket_cap_mb=0.0001))


@program
def ddp_unused_parameters():
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.spare = model(), nn.Linear(3, 3)

        def forward(self, inputs):
            outputs = self.body(inputs)
            return self.spare(outputs) if dist.get_rank() == 0 and inputs[0, 0] > 0 else outputs

    return train(DistributedDataParallel(Unused(), find_unused_parameters=True))


@program
def ddp_without_buffers_from_rank_0():
    return train(DistributedDataParallel(model(), broadcast_buffers=False, init_sync=False))


@program
def ddp_sparse_gradients():
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.body = nn.Embedding(10, 6, sparse=True), model()

        def forward(self, inputs):
            return self.body(self.embedding((inputs[:, 0].abs() * 3).long()) + inputs)

    wrapped = DistributedDataParallel(Sparse())
    return train(wrapped, torch.optim.SGD(wrapped.parameters(), lr=0.1))


@program
def ddp_no_sync():
    wrapped = DistributedDataParallel(model())
    first, second, third = batches()
    with wrapped.no_sync():
        loss_of(wrapped, first).backward()
        loss_of(wrapped, second).backward()
    loss_of(wrapped, third).backward()
    return [parameter.grad for parameter in wrapped.parameters()]


@program
def ddp_join():
    wrapped = DistributedDataParallel(model(), broadcast_buffers=False)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    with Join([wrapped]):
        for inputs in batches(STEPS + dist.get_rank()):
            optimizer.zero_grad()
            loss_of(wrapped, inputs).backward()
            optimizer.step()
    return state(wrapped)


def with_hook(hook: Callable[..., object], hook_state: object = None, bucket_cap_mb: float = 0.0001) -> object:
    wrapped = DistributedDataParallel(model(), bucket_cap_mb=bucket_cap_mb)
    wrapped.register_comm_hook(hook_state, hook)
    return train(wrapped)


@program
def ddp_allreduce_hook():
    return with_hook(default_hooks.allreduce_hook)


@program
def ddp_hook_of_its_own():
    def halved(_, bucket):
        reduced = dist.all_reduce(bucket.buffer(), async_op=True)
        return reduced.get_future().then(lambda future: future.value()[0] / 2)

    return with_hook(halved)


@program
def ddp_fp16_hook():
    return with_hook(default_hooks.fp16_compress_hook)


@program
def ddp_fp16_wrapped_power_sgd_hook():
    power = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    hook = default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)
    with mock.patch("torch.cuda.is_available", return_value=False):  # else it waits for a GPU, even on a CPU
        return with_hook(hook, power, bucket_cap_mb=25)  # with several buckets it can hang on gloo, observed or not


@program
def ddp_builtin_fp16_hook():
    wrapped = DistributedDataParallel(model())
    wrapped._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    return train(wrapped)


@program
def ddp_builtin_all_reduce_hook():
    wrapped = DistributedDataParallel(model())
    wrapped._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    return train(wrapped)


class Descent:
    """An optimizer that a hook calls with one parameter at a time."""

    def step_param(self, parameter, gradient):
        parameter.data.add_(gradient, alpha=-0.1)


@program
def ddp_optimizer_in_the_hook():
    wrapped = DistributedDataParallel(model())
    optimizer = _OptimizerHookState(Descent())
    wrapped.register_comm_hook(None, _hook_then_optimizer(default_hooks.allreduce_hook, optimizer))
    for inputs in batches():
        loss_of(wrapped, inputs).backward()
    return state(wrapped)


@program
def ddp_on_a_group_of_its_own():
    group = dist.new_group([0, 1])
    found = train(DistributedDataParallel(model(), process_group=group))
    dist.destroy_process_group(group)
    return found


@program
def zero_redundancy_optimizer():
    from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: PLC0415  its package warns on import

    wrapped = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(
        wrapped.parameters(), torch.optim.AdamW, lr=0.01, parameters_as_bucket_view=True
    )
    found = train(wrapped, optimizer)
    optimizer.consolidate_state_dict(0)
    return found


@program
def fsdp2():
    mesh = init_device_mesh("cpu", (2,))
    wrapped = nn.Sequential(*[layer for layer in model() if not isinstance(layer, nn.BatchNorm1d)])
    for layer in wrapped:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(wrapped, mesh=mesh)
    return train(wrapped, torch.optim.AdamW(wrapped.parameters(), lr=0.01))


@program
def fsdp2_in_half_precision_without_resharding():
    mesh = init_device_mesh("cpu", (2,))
    wrapped = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(wrapped, mesh=mesh, reshard_after_forward=False, mp_policy=policy)
    return train(wrapped)


@program
def fsdp2_hybrid():
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    wrapped = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    fully_shard(wrapped, mesh=mesh)
    return train(wrapped)


@program
def dtensor():
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    rows = distribute_tensor(torch.randn(6, 4), mesh, [Shard(0)])
    columns = distribute_tensor(torch.randn(4, 6), mesh, [Shard(1)])
    product = rows @ columns
    partial = columns @ rows
    moved = [
        tensor.redistribute(mesh, [placement])
        for tensor, placement in itertools.product((product, partial), (Shard(1), Replicate()))
    ]
    return [tensor.to_local() for tensor in moved], product.sum().full_tensor()


@program
def tensor_parallel():
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    wrapped = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    parallelize_module(wrapped, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return train(wrapped)


@program
def reentrant_checkpoint():
    from torch.utils.checkpoint import checkpoint  # noqa: PLC0415  imports much

    body = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    for inputs in batches():
        checkpoint(body, inputs.requires_grad_(), use_reentrant=True).sum().backward()
    for parameter in body.parameters():
        dist.all_reduce(parameter.grad)
    return [parameter.grad for parameter in body.parameters()]
