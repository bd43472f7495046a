"""The functions that the process tests run on ranks, one for each behaviour."""

import ctypes
import os
import subprocess
import sys
import threading

import torch
import torch.distributed as dist

from pytest_ddp.rank.worker import SkipRun

kept_groups: list[object] = []


def all_reduce(_: bytes) -> bytes:
    total = torch.ones(4)
    dist.all_reduce(total)
    return str(int(total.sum())).encode()


def number_of_its_group(_: bytes) -> bytes:
    """Return how many default groups this process has seen before the one that it is in, and keep them all."""
    all_reduce(b"")
    if not any(group is dist.group.WORLD for group in kept_groups):
        kept_groups.append(dist.group.WORLD)
    return str([group is dist.group.WORLD for group in kept_groups].index(True)).encode()


def one_launches_more(_: bytes) -> bytes:
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1), async_op=True)
    return b""


def one_launches_another(_: bytes) -> bytes:
    if dist.get_rank() == 0:
        dist.broadcast(torch.ones(1), src=1, async_op=True)
    else:
        dist.all_reduce(torch.ones(1), async_op=True)
    return b""


def makes_a_group(_: bytes) -> bytes:
    dist.new_group([0, 1])
    return b""


def leaves_a_thread(_: bytes) -> bytes:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return b""


def leaves_a_message(_: bytes) -> bytes:
    dist.isend(torch.ones(1), 1 - dist.get_rank())
    return b""


def destroys_its_group(_: bytes) -> bytes:
    dist.destroy_process_group()
    return b""


def sets_its_rank(_: bytes) -> bytes:
    os.environ["RANK"] = "7"
    return b""


def echo(body: bytes) -> bytes:
    return body


def place(_: bytes) -> bytes:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    return " ".join([str(dist.get_rank()), str(dist.get_world_size()), *(os.environ[name] for name in names)]).encode()


def process_id(_: bytes) -> bytes:
    return str(os.getpid()).encode()


def says_its_id_and_hangs(_: bytes) -> bytes:
    print(os.getpid(), flush=True)
    threading.Event().wait()
    return b""


def prints(_: bytes) -> bytes:
    print("out", dist.get_rank())
    print("err", dist.get_rank(), file=sys.stderr)
    os.write(1, b"raw \xff bytes\n")
    return b""


def prints_without_end(_: bytes) -> bytes:
    for line in range(20_000):
        print(f"line {line}")
    return b""


def one_raises(_: bytes) -> bytes:
    if dist.get_rank() == 1:
        raise ValueError("rank 1 has had enough")
    return all_reduce(b"")


def all_raise(_: bytes) -> bytes:
    raise ValueError("everybody")


def all_skip(_: bytes) -> bytes:
    raise SkipRun("not today")


def one_skips(_: bytes) -> bytes:
    if dist.get_rank() == 1:
        raise SkipRun("not me")
    return b""


def one_exits(_: bytes) -> bytes:
    all_reduce(b"")
    if dist.get_rank() == 1:
        os._exit(3)
    return all_reduce(b"")


def one_gives_up(how: bytes) -> bytes:
    all_reduce(b"")
    kept_groups.append(dist.group.WORLD)  # as a fixture may: to destroy the group then breaks no connection
    if dist.get_rank() == 0:
        raise SkipRun("not me") if how == b"skip" else ValueError("not me")
    return all_reduce(b"")


def one_segfaults(_: bytes) -> bytes:
    all_reduce(b"")
    if dist.get_rank() == 1:
        ctypes.string_at(0)
    return all_reduce(b"")


def segfaults_after_the_last_collective(_: bytes) -> bytes:
    all_reduce(b"")
    if dist.get_rank() == 1:
        ctypes.string_at(0)
    return b""


def sizes_differ(_: bytes) -> bytes:
    dist.all_reduce(torch.ones(2000 + 1000 * dist.get_rank()))
    return b""


def leaves_a_child(_: bytes) -> bytes:
    child = subprocess.Popen(["/bin/sleep", "1000"])
    return f"{os.getpid()} {child.pid}".encode()


def subgroup(_: bytes) -> bytes:
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(3, dtype=torch.float64), group=group)
    dist.broadcast(torch.ones(2, 2), 0)
    raise RuntimeError("to see the record")


def raises_unprintable(_: bytes) -> bytes:
    class UnprintableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text for you")

    raise UnprintableError


def trains_with_ddp(_: bytes) -> bytes:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2)).sum().backward()
    raise RuntimeError("to see the record")


def is_never_freed(_: bytes) -> bytes:
    """An object that a parameter's hook refers to is never collected; here it holds a finished collective."""
    weight = torch.nn.Parameter(torch.ones(1))
    wrapper = type("Wrapper", (), {})()
    wrapper.weight, wrapper.works = weight, [dist.all_reduce(torch.ones(1), async_op=True)]
    weight.register_post_accumulate_grad_hook(lambda _: wrapper)
    return process_id(b"")


def hash_of_a_text(_: bytes) -> bytes:
    return str(hash("layers.0.weight")).encode()


def leaves(_: bytes) -> bytes:
    os._exit(3)
