"""A rank's process groups: made fresh for every test, destroyed off its path."""

import gc
import os
from _thread import start_new_thread
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore
from torch.distributed.constants import default_pg_timeout

from pytest_ddp.observed.announcer import Announcer
from pytest_ddp.observed.recording import current
from pytest_ddp.protocol.flight_recorder import Recorder, key_of, own_thread
from pytest_ddp.protocol.messages import Run
from pytest_ddp.rank.collective_hooks import record_to
from pytest_ddp.rank.connections import forget_connections
from pytest_ddp.torch_internals import all_groups

# Gloo keeps a thread, some files and a tick of 10 ms for each group that anything refers to, if only a finished `Work`.
# What refers to a parameter that has a `post_accumulate_grad_hook` is never collected (torch 2.15), if the hook does.
HELD_GROUPS = 64
_GROUPS_BETWEEN_LOOKS = 16


def device_of(rank: int, run: Run) -> torch.device:
    """Return where the tensors of a rank belong in a run."""
    return torch.device("cuda", run.gpus[rank]) if run.device == "cuda" else torch.device("cpu")


class GroupKeeper:
    """Holds this rank's default group and replaces it when a run names another one."""

    def __init__(self, store: tuple[str, int], recorder: Recorder) -> None:
        self._rank = recorder.rank
        self._recorder = recorder
        self._address = store
        self._store: Store | None = None
        self._current: str | None = None
        self._entered = self._held = 0

    def enter(self, run: Run) -> None:
        """Make sure that the default group is the one that `run` names; the environment says the same as the group.

        Raises:
            RuntimeError: too many groups of earlier runs are still held; a new rank must take this one's place.
        """
        if run.group == self._current:
            return
        leave_groups()
        self._entered += 1
        if self._entered % _GROUPS_BETWEEN_LOOKS == 0:
            self._held = held_groups()
        if self._held > HELD_GROUPS:
            raise RuntimeError(f"{self._held} process groups of earlier runs cannot be freed: something refers to them")
        forget_connections()
        self._record(run)
        self._current = None
        os.environ.update(
            RANK=str(self._rank),
            LOCAL_RANK=str(self._rank),
            WORLD_SIZE=str(run.size),
            LOCAL_WORLD_SIZE=str(run.size),
        )
        options: dict[str, Any] = {}
        if run.device == "cuda":
            device = device_of(self._rank, run)
            torch.cuda.set_device(device)
            options = {"device_id": device} if run.backend == "nccl" else {}
        dist.init_process_group(
            run.backend,
            store=PrefixStore(run.group, self._connect()),
            rank=self._rank,
            world_size=run.size,
            timeout=timedelta(seconds=run.group_timeout),
            **options,
        )
        self._current = run.group

    def _record(self, run: Run) -> None:
        """Have the next groups observed, or only recorded; all ranks have done so before any of them has the group."""
        patience = min(timedelta(seconds=run.group_timeout), default_pg_timeout)
        self._recorder.begin_group(key_of(run.group), patience)
        record_to(None if run.observe else self._recorder)
        if not (run.observe or current.is_observed()):
            return
        from pytest_ddp.observed.recording import install  # noqa: PLC0415  only for those who use it

        install.stop_observing()
        if run.observe:
            install.observe(Announcer(self._recorder))

    def _connect(self) -> Store:
        if self._store is None:
            host, port = self._address
            self._store = TCPStore(host, port, is_master=False, wait_for_workers=False)
        return self._store


def leave_groups() -> None:
    """Forget every process group now, and destroy them in a thread.

    Gloo waits about 10 ms per rank when a group is destroyed; tests should not pay for that.
    """
    if not dist.is_initialized():
        return
    groups = all_groups()  # keeps them alive past destroy_process_group
    dist.destroy_process_group()
    start_new_thread(_destroy, (groups,))  # `Thread.start` would wait for the thread to run


def held_groups() -> int:
    """Return how many files of this process are epoll instances, of which gloo has one a group; 0 off Linux."""
    found = 0
    for file in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):  # the one that the folder itself is read by
            found += file.readlink() == Path("anon_inode:[eventpoll]")
    return found


def _destroy(groups: list[Any]) -> None:
    with own_thread():
        groups.clear()
        gc.collect(0)
