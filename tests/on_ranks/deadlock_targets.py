"""Ranks that wait for ever, and ranks that only seem to."""

import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from pytest_ddp.observed.recording import current
from pytest_ddp.protocol.flight_recorder import State
from pytest_ddp.rank.worker import SkipRun

FOUR = 4


def all_reduce(group=None) -> None:
    dist.all_reduce(torch.ones(FOUR), group=group)


def one_returns(_: bytes) -> bytes:
    all_reduce()
    if dist.get_rank() == 0:
        all_reduce()
    return b""


def one_returns_before_a_handle_is_waited_for(_: bytes) -> bytes:
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(FOUR), async_op=True)
        work.wait()
    return b""


def one_returns_from_a_group_of_its_own(_: bytes) -> bytes:
    for _ in range(5):
        all_reduce()
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.PrefixStore("own", store), rank=rank, world_size=2)
    return one_returns(b"")


def one_raises(_: bytes) -> bytes:
    if dist.get_rank() == 1:
        raise ValueError("rank 1 has had enough")
    all_reduce()
    return b""


def one_skips(_: bytes) -> bytes:
    if dist.get_rank() == 1:
        raise SkipRun("not me")
    all_reduce()
    return b""


def one_dies(_: bytes) -> bytes:
    if dist.get_rank() == 1:
        os._exit(3)
    all_reduce()
    return b""


def one_is_late_for_a_barrier(_: bytes) -> bytes:
    """Rank 1 returns when all others wait: who comes later would find the others gone, and be told of apart."""
    if dist.get_rank() != 1:
        dist.barrier()
    recorder = current.record().monitor.recorder
    readers = [recorder.reader(rank) for rank in range(dist.get_world_size()) if rank != 1]
    while any(reader.head().state is not State.WAITS for reader in readers):
        time.sleep(0.001)
    return b""


def nobody_receives(_: bytes) -> bytes:
    if dist.get_rank() == 0:
        dist.send(torch.ones(FOUR), 1)
    return b""


def nobody_sends(_: bytes) -> bytes:
    if dist.get_rank() == 0:
        dist.recv(torch.ones(FOUR), 1)
    return b""


def nobody_sends_to_anyone(_: bytes) -> bytes:
    if dist.get_rank() == 0:
        dist.recv(torch.ones(FOUR))
    return b""


def one_message_too_few(_: bytes) -> bytes:
    if dist.get_rank() == 0:
        for _ in range(3):
            dist.recv(torch.ones(FOUR))
    else:
        dist.send(torch.ones(FOUR), 0)
    return b""


def another_tag(_: bytes) -> bytes:
    if dist.get_rank() == 0:
        dist.send(torch.ones(FOUR), 1, tag=1)
    else:
        dist.recv(torch.ones(FOUR), 0, tag=2)
    return b""


def all_send_first(_: bytes) -> bytes:
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.send(torch.ones(FOUR), (rank + 1) % size)
    dist.recv(torch.ones(FOUR), (rank - 1) % size)
    return b""


def all_receive_first(_: bytes) -> bytes:
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.recv(torch.ones(FOUR), (rank - 1) % size)
    dist.send(torch.ones(FOUR), (rank + 1) % size)
    return b""


def a_message_against_a_collective(_: bytes) -> bytes:
    if dist.get_rank() == 0:
        dist.recv(torch.ones(FOUR), 1)
    all_reduce()
    if dist.get_rank() == 1:
        dist.send(torch.ones(FOUR), 0)
    return b""


def crossed_groups(_: bytes) -> bytes:
    one, other = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (one, other) if dist.get_rank() == 0 else (other, one):
        all_reduce(group)
    return b""


def groups_in_a_ring(_: bytes) -> bytes:
    rank = dist.get_rank()
    pairs = [dist.new_group(pair) for pair in ([0, 1], [1, 2], [2, 0])]
    for pair in (rank, (rank - 1) % 3):
        all_reduce(pairs[pair])
    return b""


def two_wait_while_one_computes(_: bytes) -> bytes:
    if dist.get_rank() == 2:
        threading.Event().wait()
    dist.recv(torch.ones(FOUR), 1 - dist.get_rank())
    return b""


# What only seems to be one.


def one_is_slow(body: bytes) -> bytes:
    if dist.get_rank() == 1:
        threading.Event().wait(float(body))
    all_reduce()
    return b""


def one_computes(body: bytes) -> bytes:
    if dist.get_rank() == 1:
        matrix = torch.ones(256, 256)
        for _ in range(int(body)):
            matrix = (matrix @ matrix).clamp(max=1)
    all_reduce()
    return b""


def another_thread_comes(_: bytes) -> bytes:
    """Rank 0 waits in a thread of its own while its main thread sends what rank 1 needs to come there."""
    group = dist.new_group([0, 1])
    if dist.get_rank() == 0:
        thread = threading.Thread(target=all_reduce, args=(group,))
        thread.start()
        threading.Event().wait(1)
        dist.send(torch.ones(FOUR), 1)
        thread.join()
    else:
        dist.recv(torch.ones(FOUR), 0)
        all_reduce(group)
    return b""


def a_thread_of_a_rank_that_returned_comes(_: bytes) -> bytes:
    group = dist.new_group([0, 1])
    if dist.get_rank() == 1:
        threading.Thread(target=_come_later, args=(group,)).start()
    else:
        all_reduce(group)
    return b""


def _come_later(group) -> None:
    threading.Event().wait(1)
    all_reduce(group)


def a_timeout_is_expected(_: bytes) -> bytes:
    group = dist.new_group([0, 1])  # a timeout given here would also be one for making the group
    group._get_backend(torch.device("cpu"))._set_default_timeout(timedelta(seconds=1))
    return _fails_by_itself(lambda: all_reduce(group)) if dist.get_rank() == 0 else b""


def a_wait_has_a_timeout(_: bytes) -> bytes:
    if dist.get_rank() == 1:
        return b""
    work = dist.irecv(torch.ones(FOUR), 1)
    return _fails_by_itself(lambda: work.wait(timedelta(seconds=1)))


def a_monitored_barrier_has_a_timeout(_: bytes) -> bytes:
    if dist.get_rank() == 1:
        return b""
    return _fails_by_itself(lambda: dist.monitored_barrier(timeout=timedelta(seconds=1)))


def _fails_by_itself(wait) -> bytes:
    try:
        wait()
    except RuntimeError as error:
        return type(error).__name__.encode()
    return b"no error"


def a_server_takes_from_anyone(body: bytes) -> bytes:
    """Every message is a header that anyone may have sent, then a payload from its sender, in another dtype."""
    rank, size, count = dist.get_rank(), dist.get_world_size(), int(body)
    for _ in range(count * (size - 1) if rank == 0 else count):
        header = torch.tensor([rank])
        if rank == 0:
            dist.recv(header)
            dist.recv(torch.empty(FOUR), int(header))
        else:
            dist.send(header, 0)
            dist.send(torch.ones(FOUR), 0)
    return b""


def everything_in_turn(body: bytes) -> bytes:
    """Collectives, messages and subgroups, in an order that is the same everywhere."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pair = dist.new_group([0, 1])
    for _ in range(int(body)):
        all_reduce()
        works = [dist.isend(torch.ones(FOUR), (rank + 1) % size), dist.irecv(torch.ones(FOUR), (rank - 1) % size)]
        for work in works:
            work.wait()
        if rank < 2:
            all_reduce(pair)
            dist.broadcast(torch.ones(FOUR), rank * 0, group=pair)
        handles = [dist.all_reduce(torch.ones(FOUR), async_op=True) for _ in range(3)]
        for handle in reversed(handles):
            handle.wait()
        dist.all_gather_object([None] * size, rank)
        dist.barrier()
    return b""
