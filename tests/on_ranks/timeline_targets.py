"""Targets that fail after a training step, so that a timeline is reported; and targets that compare records."""

import os

import torch
import torch.distributed as dist
from torch import nn

from pytest_ddp.observed import collectives


def _step() -> None:
    model = nn.Linear(2, 2)
    collectives().name(model)
    model(torch.ones(1, 2)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def all_raise(_: bytes) -> bytes:
    _step()
    raise ValueError("had enough")


def one_raises(_: bytes) -> bytes:
    _step()
    if dist.get_rank() == 1:
        raise ValueError("had enough")
    return b""


def one_dies(_: bytes) -> bytes:
    _step()
    if dist.get_rank() == 1:
        os._exit(3)
    return b""


def one_waits(_: bytes) -> bytes:
    _step()
    if dist.get_rank() == 0:
        dist.barrier()
    return b""


def nothing_fails(_: bytes) -> bytes:
    _step()
    return b""


def one_breaks_its_record(_: bytes) -> bytes:
    """Break the record of rank 1."""
    _step()
    if dist.get_rank() == 1:
        collectives()._record._entries = None  # type: ignore[assignment]
    raise ValueError("had enough")


def same(_: bytes) -> bytes:
    for _ in range(3):
        _step()
        collectives().assert_same_on_all_ranks()
    before = len(collectives())
    collectives().assert_same_on_all_ranks()
    assert len(collectives()) == before  # the assertion is not recorded
    return b""


def one_enters_one_more(_: bytes) -> bytes:
    _step()
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(3), async_op=True)
    collectives().assert_same_on_all_ranks()
    return b""


def different_order(_: bytes) -> bytes:
    """Use two groups in different orders, asynchronously: gloo allows it, NCCL forbids it."""
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    order = groups if dist.get_rank() == 0 else groups[::-1]
    for work in [dist.all_reduce(torch.ones(2), group=group, async_op=True) for group in order]:
        work.wait()
    collectives().assert_same_on_all_ranks()
    return b""


def one_does_not_compare(_: bytes) -> bytes:
    _step()
    if dist.get_rank() == 0:
        collectives().assert_same_on_all_ranks()
    return b""


def no_group(_: bytes) -> bytes:
    dist.destroy_process_group()
    collectives().assert_same_on_all_ranks()
    return b""


def different_parts(_: bytes) -> bytes:
    """Scatter and gather, in which ranks pass different tensors."""
    rank = dist.get_rank()
    both = [torch.ones(2), torch.ones(2)]
    dist.scatter(torch.ones(2), both if rank == 0 else None, src=0)
    dist.gather(torch.ones(2), both if rank == 1 else None, dst=1)
    if rank == 0:
        dist.send(torch.ones(2), 1)
    else:
        dist.recv(torch.ones(2), 0)
    collectives().assert_same_on_all_ranks()
    return b""


def raises_at_once(_: bytes) -> bytes:
    raise ValueError("had enough")


def exports_a_trace(folder: bytes) -> bytes:
    _step()
    work = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(3)]
    for one in work:
        one.wait()
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=group)
    collectives().select("all_reduce", group=group).assert_count(1)
    collectives().export_trace(f"{folder.decode()}/{dist.get_rank()}.json")
    return b""
