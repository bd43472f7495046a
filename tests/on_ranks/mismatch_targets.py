"""Two ranks that do not call the same: rank 1 differs from rank 0 in one word, or in the order."""

from collections.abc import Callable

import torch
import torch.distributed as dist

FOUR = 4


def differ(name: bytes) -> bytes:
    """Be called on every rank: agree once, then call what `name` says."""
    dist.all_reduce(torch.ones(FOUR))
    CALLS[name.decode()](dist.get_rank())
    return b""


def operation(rank: int) -> None:
    if rank == 0:
        dist.all_reduce(torch.ones(FOUR))
    else:
        dist.broadcast(torch.ones(FOUR), 0)


def operation_later(rank: int) -> None:
    """Rank 1 calls after rank 0 has; if both call at one time, both find what differs, and nobody waits."""
    if rank == 0:
        handle = dist.all_reduce(torch.ones(FOUR), async_op=True)
        dist.send(torch.ones(1), 1)
        handle.wait()
    else:
        dist.recv(torch.ones(1), 0)
        dist.broadcast(torch.ones(FOUR), 0)


def barrier(rank: int) -> None:
    if rank == 0:
        dist.all_reduce(torch.ones(FOUR))
    else:
        dist.barrier()


def shape(rank: int) -> None:
    dist.all_reduce(torch.ones(FOUR + rank))


def layout(rank: int) -> None:
    dist.all_reduce(torch.ones(2, 3) if rank else torch.ones(3, 2))


def dtype(rank: int) -> None:
    dist.all_reduce(torch.ones(FOUR, dtype=torch.float64 if rank else torch.float32))


def reduction(rank: int) -> None:
    dist.all_reduce(torch.ones(FOUR), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)


def root(rank: int) -> None:
    dist.broadcast(torch.ones(FOUR), rank)


def reduce_root(rank: int) -> None:
    dist.reduce(torch.ones(FOUR), rank)


def order(rank: int) -> None:
    small, large = torch.ones(FOUR), torch.ones(2 * FOUR)
    for tensor in (large, small) if rank else (small, large):
        dist.all_reduce(tensor)


def order_of_handles(rank: int) -> None:
    small, large = torch.ones(FOUR), torch.ones(2 * FOUR)
    works = [dist.all_reduce(tensor, async_op=True) for tensor in ((large, small) if rank else (small, large))]
    for work in works:
        work.wait()


def gathered_size(rank: int) -> None:
    mine = torch.ones(FOUR + rank)
    dist.all_gather([torch.empty_like(mine) for _ in range(2)], mine)


def gathered_tensor(rank: int) -> None:
    mine = torch.ones(FOUR + rank)
    dist.all_gather_into_tensor(torch.empty(2 * len(mine)), mine)


def gather_root(rank: int) -> None:
    mine = torch.ones(FOUR)
    dist.gather(mine, [torch.empty(FOUR) for _ in range(2)], dst=rank)


def gather_size(rank: int) -> None:
    dist.gather(torch.ones(FOUR + rank), None if rank else [torch.empty(FOUR) for _ in range(2)])


def scatter_size(rank: int) -> None:
    dist.scatter(torch.empty(FOUR + rank), None if rank else [torch.ones(FOUR) for _ in range(2)])


def reduced_shards(rank: int) -> None:
    dist.reduce_scatter_tensor(torch.empty(FOUR + rank), torch.ones(2 * (FOUR + rank)))


def splits(rank: int) -> None:
    dist.all_to_all_single(torch.empty(FOUR + rank), torch.ones(FOUR), [2 + rank, 2], [2, 2])


def message_dtype(rank: int) -> None:
    if rank == 0:
        dist.send(torch.ones(FOUR, dtype=torch.int32), 1)
    else:
        dist.recv(torch.ones(FOUR), 0)


def message_size(rank: int) -> None:
    if rank == 0:
        dist.send(torch.ones(FOUR), 1)
    else:
        dist.recv(torch.ones(FOUR + 1), 0)


def subgroup(rank: int) -> None:
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(FOUR + rank), group=group)


def objects(rank: int) -> None:
    if rank == 0:
        dist.all_gather_object([None, None], "x")
    else:
        dist.broadcast_object_list(["x"], 0)


CALLS: dict[str, Callable[[int], None]] = {
    call.__name__: call
    for call in (
        operation,
        operation_later,
        barrier,
        shape,
        layout,
        dtype,
        reduction,
        root,
        reduce_root,
        order,
        order_of_handles,
        gathered_size,
        gathered_tensor,
        gather_root,
        gather_size,
        scatter_size,
        reduced_shards,
        splits,
        message_dtype,
        message_size,
        subgroup,
        objects,
    )
}
