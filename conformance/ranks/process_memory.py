"""Weighs optimizer state from outside of the objects that may hold it: by the memory that this process has allocated.

State in a closure, a module, an attribute of a class or behind ctypes weighs as much as in an optimizer. So does state
that went elsewhere: to shared memory, to another process, to a file.
"""

import ctypes
import gc
import os
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import psutil
import torch
import torch.distributed as dist

from conformance.ranks.parameters import take_hooks_off


class _Mallinfo2(ctypes.Structure):
    """What glibc says of its heaps (see mallinfo(3))."""

    _fields_ = (
        *((f"_before_{number}", ctypes.c_size_t) for number in range(4)),
        ("hblkhd", ctypes.c_size_t),  # bytes of large allocations
        *((f"_between_{number}", ctypes.c_size_t) for number in range(2)),
        ("uordblks", ctypes.c_size_t),  # bytes of all others
        *((f"_after_{number}", ctypes.c_size_t) for number in range(2)),
    )


def _allocated() -> Callable[[], int] | None:
    """Return a function that counts the bytes which this process has allocated; None if the C library has none."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _Mallinfo2

    def allocated() -> int:
        seen = mallinfo2()
        return int(seen.uordblks + seen.hblkhd)

    before, tensor = allocated(), torch.ones(2**18)
    counts = allocated() - before >= tensor.untyped_storage().nbytes()
    return allocated if counts else None  # another allocator may be in use


_WIDER = 16
_TIMES = 2
_MORE_STEPS = 2
_POLL_SECONDS = 0.001
_POLLS = 200
_ALIKE = 5
_BYTES_SENT = slice(200, 208)  # of tcp_info (see linux/tcp.h)
_SO_MEMINFO, _MEMINFO_BYTES = 55, 12  # of which: bytes received, their limit, bytes sent (see linux/sock_diag.h)
_BLOCK = 512  # the unit of `st_blocks`
_PR_SET_DUMPABLE = 4
_ALLOCATED = _allocated()
Make = Callable[..., torch.optim.Optimizer]


def process_state_bytes(
    make: Make, parameters: Iterable[torch.Tensor], kind: Any, options: dict[str, Any]
) -> int | None:
    """Return how many bytes more an optimizer of this kind needs than SGD, which has no state; None if unknown.

    To that comes what its later steps add. Both are made by `make` and step, with repeated copies of the parameters, so
    that their state outweighs what else is allocated. A sharded optimizer's buffers for collectives are allocated for
    SGD too; those that it allocates but once, for an optimizer before. All are kept to the end, so that none frees what
    another one has left. A thread may free the tensors of a collective late, and so count them for the wrong optimizer.
    So each is weighed twice, and the result is the least that they may differ. Traffic with other processes is
    the same for SGD, unless state is part of it.
    """
    if _ALLOCATED is None:
        return None
    wide, kept = [one.detach().repeat_interleave(_WIDER, 0) for one in parameters], list[Any]()
    plain, wanted = partial(make, optimizer_cls=torch.optim.SGD, lr=0.1), partial(make, optimizer_cls=kind, **options)
    _, *growths = [_growth(one, wide, kept) for one in (plain, *(plain, wanted) * _TIMES)]
    (inside_plain, elsewhere_plain, _), (inside, elsewhere, later) = (
        zip(*growths[first::2], strict=True) for first in (0, 1)
    )
    found = max(min(inside) - max(inside_plain), min(elsewhere) - max(elsewhere_plain))
    return int(found + max(0, min(later))) // _WIDER


def _growth(make: Make, parameters: Iterable[torch.Tensor], kept: list[Any]) -> tuple[int, int, int]:
    """Return how many bytes it takes to make an optimizer of copies of the parameters and to step.

    They are those that are allocated, those that are kept anywhere, and those that later steps allocate.
    """
    kept.append(copies := [torch.nn.Parameter(one.clone()) for one in parameters])
    inside, elsewhere = _allocated_for_good(), _elsewhere()
    kept.append(optimizer := make(copies))
    _step(optimizer, copies)
    first, more = _allocated_for_good(), _elsewhere() - elsewhere
    for _ in range(_MORE_STEPS):
        _step(optimizer, copies)
    later = _allocated_for_good() - first
    take_hooks_off(copies)
    return first - inside, more, later


def _step(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]) -> None:
    torch.autograd.backward([parameter.sum() for parameter in parameters])
    optimizer.step()


def _allocated_for_good() -> int:
    """Return the bytes once they stay the same: threads free the tensors of collectives that are over."""
    dist.barrier()
    gc.collect()
    allocated = _ALLOCATED or (lambda: 0)
    seen = [allocated()]
    while len(seen) < _POLLS and seen[-_ALIKE:] != [seen[-1]] * _ALIKE:
        time.sleep(_POLL_SECONDS)
        seen.append(allocated())
    return seen[-1]


def _elsewhere() -> int:
    """Return the bytes in memory of this process and of those that it started, and those that they have sent away.

    That is state in shared memory, in another process, in a file or in a connection. 0 on systems without /proc.
    """
    dist.barrier()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    children = psutil.Process().children(recursive=True)
    used = sum(map(_used, (psutil.Process(), *children)))
    return used + _sent_or_held() + _written() + sum(map(_written_by, children))


def _used(process: psutil.Process) -> int:
    """Return the bytes of memory of a process: its own, or those that it shares too if the system says no more."""
    with suppress(psutil.Error, OSError):
        return int(process.memory_full_info().uss)
    with suppress(psutil.Error, OSError):  # a sandbox hides what is in the memory of a process from others
        return int(process.memory_info().rss)
    return 0  # it has ended


def _written_by(process: psutil.Process) -> int:
    with suppress(psutil.Error, OSError):  # it has ended, or is hidden: what it reads, this process has written
        return int(process.io_counters().write_chars)
    return 0


def _written() -> int:
    """Return the bytes that this process has written to files and pipes.

    In a sandbox it is hidden from other processes, and so this file is from itself. What it reads once it is open is
    its own.
    """
    try:
        return _written_by_this()
    except FileNotFoundError:
        return 0
    except PermissionError:
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
        try:
            return _written_by_this()
        finally:
            libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _written_by_this() -> int:
    with open("/proc/self/io", "rb") as file:  # noqa: PTH123  a `Path` might be the submission's
        return next(int(line.split()[1]) for line in file if line.startswith(b"wchar:"))


def _sent_or_held() -> int:
    """Return the bytes that were sent on TCP connections of this process, and those that its other files hold.

    A socket holds what nobody has received yet; a file without a name, such as one of `memfd_create`, its content.
    What `send` sends is none that it wrote.
    """
    found = dict[tuple[int, int], int]()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  a `Path` might be the submission's
        with suppress(OSError):  # it is closed
            seen = os.fstat(int(name))
            if stat.S_ISSOCK(seen.st_mode):
                found[seen.st_dev, seen.st_ino] = _sent_or_held_by(int(name))
            elif stat.S_ISREG(seen.st_mode) and not seen.st_nlink:
                found[seen.st_dev, seen.st_ino] = seen.st_blocks * _BLOCK
    return sum(found.values())


def _sent_or_held_by(descriptor: int) -> int:
    with socket.socket(fileno=os.dup(descriptor)) as one:
        with suppress(OSError):  # it is a socket of another kind
            info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_SENT.stop)
            return int.from_bytes(info[_BYTES_SENT], sys.byteorder)
        received, _, sent = struct.unpack("3I", one.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO_BYTES))
        return int(received + sent)
