"""Calls every operation of torch.distributed that gloo has once, and returns its result and its entries."""

import pickle
import warnings
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from pytest_ddp import observed
from pytest_ddp.observed.recording import current

OPERATIONS: dict[str, Callable[[int], object]] = {}


def operation(function: Callable[[int], object]) -> Callable[[int], object]:
    OPERATIONS[function.__name__] = function
    return function


def run_all(_: bytes) -> bytes:
    """Return for each operation its result on this rank and its entries; no entries if not observed."""
    return pickle.dumps({name: (tried(function), _entries()) for name, function in OPERATIONS.items()})


def tried(function: Callable[[int], object]) -> object:
    if current.is_observed():
        observed.collectives().clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own deprecations
            return plain(function(dist.get_rank()))
    except RuntimeError as error:  # gloo does not have it
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _entries() -> list[observed.Entry]:
    return list(observed.collectives()) if current.is_observed() else []


def plain(found: object) -> object:
    """Return tensors as dtype and bytes, which are equal only if every bit is."""
    if isinstance(found, torch.Tensor):
        found = found.wait() if isinstance(found, functional.AsyncCollectiveTensor) else found
        return str(found.dtype), tuple(found.shape), found.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(found, dict):
        return {name: plain(part) for name, part in found.items()}
    return [plain(part) for part in found] if isinstance(found, list | tuple) else found


def mine(rank: int, size: int = 4) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float32) * 0.1 + rank


@operation
def all_reduce(rank):
    dist.all_reduce(tensor := mine(rank))
    return tensor


@operation
def all_reduce_async_maximum(rank):
    tensor = mine(rank)
    dist.all_reduce(tensor, dist.ReduceOp.MAX, async_op=True).wait()
    return tensor


@operation
def all_reduce_future(rank):
    tensor = mine(rank)
    future = dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0] / 2)
    return future.wait()


@operation
def all_reduce_of_the_group_itself(rank):
    tensor = mine(rank)
    work = dist.group.WORLD.allreduce([tensor])
    work.wait()
    return tensor, work.is_completed(), work.result()


@operation
def all_reduce_coalesced(rank):
    tensors = [mine(rank), mine(rank, 2)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    return tensors


@operation
def all_reduce_coalesced_directly(rank):
    tensors = [mine(rank), mine(rank, 2)]
    dist.all_reduce_coalesced(tensors)
    return tensors


@operation
def broadcast(rank):
    dist.broadcast(tensor := mine(rank), src=1)
    return tensor


@operation
def broadcast_async(rank):
    dist.broadcast(tensor := mine(rank), src=0, async_op=True).wait()
    return tensor


@operation
def reduce(rank):
    dist.reduce(tensor := mine(rank), dst=1, op=dist.ReduceOp.PRODUCT)
    return tensor if rank == 1 else None


@operation
def all_gather(rank):
    dist.all_gather(parts := [torch.empty(4), torch.empty(4)], mine(rank))
    return parts


@operation
def all_gather_into_tensor(rank):
    dist.all_gather_into_tensor(whole := torch.empty(8), mine(rank))
    return whole


@operation
def all_gather_into_tensor_coalesced(rank):
    wholes = [torch.empty(8), torch.empty(4)]
    with dist._coalescing_manager():
        dist.all_gather_into_tensor(wholes[0], mine(rank))
        dist.all_gather_into_tensor(wholes[1], mine(rank, 2))
    return wholes


@operation
def all_gather_object(rank):
    dist.all_gather_object(found := [None, None], {"rank": rank})
    return found


@operation
def gather(rank):
    dist.gather(mine(rank), parts := [torch.empty(4), torch.empty(4)] if rank == 1 else None, dst=1)
    return parts


@operation
def gather_object(rank):
    dist.gather_object(rank, found := [None, None] if rank == 0 else None)
    return found


@operation
def scatter(rank):
    dist.scatter(part := torch.empty(4), [mine(5), mine(7)] if rank == 0 else None)
    return part


@operation
def scatter_object_list(rank):
    dist.scatter_object_list(found := [None], ["for 0", "for 1"] if rank == 0 else None)
    return found


@operation
def broadcast_object_list(rank):
    dist.broadcast_object_list(found := [rank, "x" * rank], src=1)
    return found


@operation
def reduce_scatter(rank):
    dist.reduce_scatter(part := torch.empty(2), list(mine(rank).chunk(2)))
    return part


@operation
def reduce_scatter_tensor(rank):
    dist.reduce_scatter_tensor(part := torch.empty(2), mine(rank))
    return part


@operation
def all_to_all(rank):
    dist.all_to_all(parts := [torch.empty(2), torch.empty(2)], list(mine(rank).chunk(2)))
    return parts


@operation
def all_to_all_single(rank):
    dist.all_to_all_single(whole := torch.empty(4), mine(rank))
    return whole


@operation
def all_to_all_single_with_splits(rank):
    given, wanted = ([1, 3], [1, 2]) if rank == 0 else ([2, 2], [3, 2])
    dist.all_to_all_single(whole := torch.empty(sum(wanted)), mine(rank), wanted, given)
    return whole


@operation
def send_and_recv(rank):
    if rank == 0:
        dist.send(mine(rank), 1, tag=3)
        return None
    source = dist.recv(tensor := torch.empty(4), 0, tag=3)
    return tensor, source


@operation
def recv_from_anybody(rank):
    if rank == 1:
        dist.send(mine(rank), 0)
        return None
    source = dist.recv(tensor := torch.empty(4))
    return tensor, source


@operation
def isend_and_irecv(rank):
    tensor = torch.empty(4)
    work = dist.isend(mine(rank), 1) if rank == 0 else dist.irecv(tensor, 0)
    work.wait()
    return tensor if rank == 1 else None


@operation
def batch_isend_irecv(rank):
    tensor = torch.empty(4)
    other = 1 - rank
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine(rank), other), dist.P2POp(dist.irecv, tensor, other)]
    ):
        work.wait()
    return tensor


@operation
def send_object_list(rank):
    objects = [{"from": rank}]
    if rank == 0:
        dist.send_object_list(objects, 1)
    else:
        dist.recv_object_list(objects, 0)
    return objects


@operation
def barrier(_):
    dist.barrier()


@operation
def monitored_barrier(_):
    dist.monitored_barrier()


def _groups(rank: int) -> Iterator[dist.ProcessGroup]:
    yield dist.new_group([0, 1])
    yield (dist.new_group([0]), dist.new_group([1]))[rank]


@operation
def new_group(rank):
    tensor = mine(rank)
    for group in _groups(rank):
        dist.all_reduce(tensor, group=group)
        dist.broadcast(tensor, group_src=0, group=group)
        dist.destroy_process_group(group)
    return tensor


@operation
def split_group(rank):
    group = dist.split_group(split_ranks=[[0, 1]])
    dist.all_reduce(tensor := mine(rank), group=group)
    name, size = dist.get_backend(group), group.size()
    dist.destroy_process_group(group)
    return tensor, name, size


@operation
def functional_collectives(rank):
    group, tensor = dist.group.WORLD, mine(rank)
    return [
        functional.all_reduce(tensor, "sum", group),
        functional.all_gather_tensor(tensor, 0, group),
        functional.reduce_scatter_tensor(tensor, "sum", 0, group),
        functional.all_to_all_single(tensor, None, None, group),
        functional.broadcast(tensor, 1, group),
        functional.permute_tensor(tensor, [1, 0], group),
    ]


@operation
def functional_coalesced(rank):
    group, tensors = dist.group.WORLD, [mine(rank), mine(rank, 2)]
    return [
        *functional.all_reduce_coalesced(tensors, "sum", group),
        *functional.all_gather_into_tensor_coalesced(tensors, group),
        *functional.reduce_scatter_tensor_coalesced(tensors, "sum", [0, 0], group),
    ]


@operation
def autograd_of_functional_collectives(rank):
    tensor = mine(rank).requires_grad_()
    functional.all_gather_tensor_autograd(tensor, 0, dist.group.WORLD).pow(2).sum().backward()
    return tensor.grad
