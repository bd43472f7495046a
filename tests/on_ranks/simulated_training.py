"""Trains with all that torch builds on process groups, the same way on real ranks and on simulated ones."""

import pickle
from collections.abc import Callable

import torch
import torch.distributed as dist
from observed_operations import mine, tried
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

TRAININGS: dict[str, Callable[[int], object]] = {}


def training(function: Callable[[int], object]) -> Callable[[int], object]:
    TRAININGS[function.__name__] = function
    return function


def run_all(_: bytes) -> bytes:
    """Return the result of each training on this rank."""
    return pickle.dumps({name: (tried(function), []) for name, function in TRAININGS.items()})


def numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def model() -> nn.Sequential:
    made = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.BatchNorm1d(4))
    with torch.no_grad():
        for seed, parameter in enumerate(made.parameters()):
            parameter.copy_(numbers(*parameter.shape, seed=seed))
    return made


def trained(wrapped: nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: int = 3) -> list[torch.Tensor]:
    for step in range(steps):
        optimizer.zero_grad()
        wrapped(numbers(4, 6, seed=10 * step + rank)).square().mean().backward()
        optimizer.step()
    return [*wrapped.parameters(), *wrapped.buffers()]


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


@training
def ddp(rank):
    wrapped = DistributedDataParallel(model())
    return trained(wrapped, sgd(wrapped), rank)


@training
def ddp_of_small_buckets(rank):
    wrapped = DistributedDataParallel(model(), bucket_cap_mb=1e-5, gradient_as_bucket_view=True)
    return trained(wrapped, sgd(wrapped), rank)


@training
def ddp_that_finds_unused_parameters(rank):
    wrapped = DistributedDataParallel(model(), find_unused_parameters=True)
    return trained(wrapped, sgd(wrapped), rank)


@training
def ddp_with_a_hook(rank):
    wrapped = DistributedDataParallel(model())
    wrapped.register_comm_hook(None, bf16_compress_hook)
    return trained(wrapped, sgd(wrapped), rank)


@training
def ddp_of_sparse_gradients(rank):
    wrapped = DistributedDataParallel(nn.Embedding(4, 2, sparse=True, _weight=numbers(4, 2, seed=0)))
    wrapped(torch.tensor([rank, 2])).sum().backward()
    return wrapped.module.weight.grad.to_dense()


@training
def ddp_of_uneven_inputs(rank):
    wrapped = DistributedDataParallel(nn.Sequential(*model()[:3]))
    with Join([wrapped]):
        return trained(wrapped, sgd(wrapped), rank, steps=1 + rank)


@training
def ddp_and_no_sync(rank):
    wrapped = DistributedDataParallel(model())
    with wrapped.no_sync():
        wrapped(numbers(4, 6, seed=50 + rank)).sum().backward()
    return trained(wrapped, sgd(wrapped), rank, steps=1)


@training
def zero(rank):
    wrapped = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.Adam, lr=0.1)
    found = trained(wrapped, optimizer, rank)
    optimizer.consolidate_state_dict(to=0)
    return found, len(optimizer.state_dict()["state"]) if rank == 0 else None


@training
def fsdp2(rank):
    module = nn.Sequential(*model()[:3])
    for layer in (module[0], module[2]):
        fully_shard(layer)
    fully_shard(module)
    trained(module, sgd(module), rank)
    return [parameter.full_tensor() for parameter in module.parameters()]


@training
def dtensor(rank):  # noqa: ARG001
    mesh = init_device_mesh("cpu", (2,))
    rows = distribute_tensor(numbers(4, 6, seed=1), mesh, [Shard(0)])
    columns = distribute_tensor(numbers(6, 4, seed=2), mesh, [Replicate()])
    product = rows @ columns
    return product.full_tensor(), product.redistribute(mesh, [Shard(1)]).to_local(), product.sum().full_tensor()


@training
def device_mesh_of_two_dimensions(rank):
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "shards"))
    tensor = mine(rank)
    dist.all_reduce(tensor, group=mesh.get_group("replicas"))
    dist.all_reduce(tensor, group=mesh.get_group("shards"))
    return tensor, mesh.get_coordinate()


@training
def broadcast_of_a_module(rank):
    made = nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(rank + 1.0)
            dist.broadcast(parameter, 0)
    return list(made.parameters())


@training
def all_reduces_of_many_dtypes(rank):
    dtypes = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.bfloat16, torch.float16, torch.float64)
    tensors = [torch.arange(5).to(dtype) + rank for dtype in (*dtypes, torch.complex64, torch.bool)]
    for tensor in tensors:
        dist.all_reduce(tensor)
    return tensors


@training
def all_reduces_of_all_kinds(rank):
    found = []
    for kind in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
        dist.all_reduce(tensor := mine(rank), getattr(dist.ReduceOp, kind))
        found.append(tensor)
    for kind in ("BAND", "BOR", "BXOR"):
        dist.all_reduce(tensor := torch.arange(5) + 3 * rank, getattr(dist.ReduceOp, kind))
        found.append(tensor)
    return found


@training
def averages_of_integers(rank):
    dist.all_reduce(torch.tensor([rank]), dist.ReduceOp.AVG)


@training
def transposed_and_channels_last(rank):
    tensors = [torch.arange(6.0).view(2, 3).t() + rank, numbers(2, 3, 4, 4, seed=rank)]
    tensors[1] = tensors[1].to(memory_format=torch.channels_last)
    for tensor in tensors:
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 1)
    return tensors


@training
def sparse_all_reduce(rank):
    with torch.sparse.check_sparse_tensor_invariants():
        tensor = torch.sparse_coo_tensor([[rank, 2]], [1.0, 2.0], (4,))
    dist.all_reduce(tensor)
    return tensor.to_dense(), tensor.is_coalesced()


@training
def empty_tensors(rank):
    dist.all_reduce(tensor := mine(rank, 0))
    dist.all_gather(parts := [torch.empty(0), torch.empty(0)], tensor)
    return tensor, parts


@training
def waits_for_keys_of_the_store(rank):
    store = dist.distributed_c10d._get_default_store()
    store.set(f"key{rank}", str(rank))
    store.wait(["key0", "key1"])
    return store.get(f"key{1 - rank}")
