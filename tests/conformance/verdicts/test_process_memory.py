"""The weight of optimizer state, where threads free memory late."""

import codecs
import mmap
import os
import signal
import socket
import sys
import tempfile
from itertools import accumulate, chain

import pytest
import torch

from conformance.ranks import process_memory
from conformance.sandbox.kernel import become, hide_memory
from pytest_ddp.pool.parent_death import adopt_orphans

WARM, PLAIN, ADAM = 9000, 1600, 8000
LATE = 50_000


@pytest.mark.parametrize("late", [None, 1, 2, 3, 4])
@pytest.mark.parametrize("weigh", ["_allocated_for_good", "_elsewhere"])
def test_memory_that_is_freed_late_is_not_state(monkeypatch, weigh, late):
    growths = [WARM, PLAIN, ADAM, PLAIN, ADAM, 0]
    if late is not None:  # counted for one optimizer, and freed while the next one is weighed
        growths[late] += LATE
        growths[late + 1] -= LATE
    ends = list(accumulate(growths))
    again = weigh == "_allocated_for_good"  # it is also called after later steps, which add nothing
    readings = chain.from_iterable((end - grown, end, *[end] * again) for grown, end in zip(growths, ends, strict=True))
    for name in ("_allocated_for_good", "_elsewhere"):
        monkeypatch.setattr(process_memory, name, readings.__next__ if name == weigh else lambda: 0)
    weighed = process_memory.process_state_bytes(
        lambda copies, optimizer_cls, **given: optimizer_cls(copies, **given),
        [torch.ones(2, 3)],
        torch.optim.Adam,
        {"lr": 0.1},
    )
    assert weighed is not None
    assert weighed <= (ADAM - PLAIN) // 16
    if late is None:
        assert weighed == (ADAM - PLAIN) // 16


MEGABYTE = 2**20
_KEPT = []


def in_a_pipe():
    for _ in range(32):
        read, write = os.pipe()
        _KEPT.append((read, write))
        os.write(write, bytes(2**15))


def in_a_socket():
    for _ in range(32):
        ours, theirs = socket.socketpair()
        _KEPT.append((ours, theirs))
        ours.send(bytes(2**15))


def in_datagrams():
    for _ in range(32):
        receives, sends = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        receives.bind(("127.0.0.1", 0))
        _KEPT.append((receives, sends))
        sends.sendto(bytes(2**15), receives.getsockname())


def in_a_memory_file_that_is_not_mapped():
    file = os.memfd_create("state")
    _KEPT.append(file)
    os.truncate(file, MEGABYTE)
    with mmap.mmap(file, MEGABYTE) as mapped:
        mapped[:] = b"x" * MEGABYTE


def in_a_file():
    with tempfile.TemporaryFile() as file:
        file.write(bytes(MEGABYTE))


def in_a_child(*, grandchild=False):
    read, write = os.pipe()
    if os.fork() == 0:
        if grandchild and os.fork():
            os._exit(0)
        _KEPT.append(b"x" * MEGABYTE)
        os.write(write, b"done")
        signal.pause()
    os.read(read, 4)


def in_an_orphan():
    in_a_child(grandchild=True)


def _growth(hide):
    """Return how much more is found elsewhere after `hide` has been called, in a child that a sandbox hides."""
    codecs.lookup("ascii")  # another user may not be able to import it
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            adopt_orphans()
            become(65519, 65519, reads_all=False) if os.getuid() == 0 else None
            hide_memory()
            process_memory._elsewhere()  # frees what earlier tests have left to be freed
            before = process_memory._elsewhere()
            hide()
            os.write(write, str(process_memory._elsewhere() - before).encode())
        except BaseException as error:  # noqa: BLE001  a fork of pytest must not go on
            os.write(write, repr(error).encode())
        finally:
            os.killpg(0, signal.SIGKILL)
    os.close(write)
    with os.fdopen(read) as file:
        answer = file.read()
    os.waitpid(child, 0)
    return int(answer)


@pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")
@pytest.mark.parametrize(
    "hide",
    [
        in_a_pipe,
        in_a_socket,
        in_datagrams,
        in_a_memory_file_that_is_not_mapped,
        in_a_file,
        in_a_child,
        in_an_orphan,
    ],
)
def test_state_that_a_rank_in_a_sandbox_keeps_elsewhere_is_weighed(monkeypatch, hide):
    monkeypatch.setattr(process_memory.dist, "barrier", lambda: None)
    assert _growth(lambda: None) < MEGABYTE / 4
    assert _growth(hide) >= MEGABYTE
