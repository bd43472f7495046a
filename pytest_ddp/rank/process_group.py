"""A rank's process groups: joined for each test, left at once, and destroyed in a thread."""

import gc
import os
from _thread import start_new_thread
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore
from torch.distributed.constants import default_pg_timeout

from pytest_ddp.observed.announcer import Announcer
from pytest_ddp.observed.recording import current
from pytest_ddp.planning.world import World
from pytest_ddp.protocol.flight_recorder import Recorder, has_other_threads, key_of, own_thread
from pytest_ddp.protocol.messages import Run
from pytest_ddp.rank.collective_hooks import begin_anew, only_collectives, record_to
from pytest_ddp.rank.connections import forget_connections
from pytest_ddp.torch_internals import all_groups, default_group

if TYPE_CHECKING:
    from collections.abc import Callable

# Gloo keeps a thread that wakes every 10 ms and some files for each group that is referred to, if only by a finished
# `Work`. Objects that refer to a parameter with a `post_accumulate_grad_hook` are never collected if the hook refers to
# them (torch 2.15).
HELD_GROUPS_LIMIT = 64
CHECK_EVERY = 16  # groups


def device_of(rank: int, world: World) -> torch.device:
    """Return the device of a rank in a world."""
    if world.device == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", world.gpus[rank] if world.gpus else world.local_rank(rank))


class DefaultGroup:
    """The default process group of this rank; a run that names another group replaces it."""

    def __init__(self, store: tuple[str, int], recorder: Recorder) -> None:
        self._rank = recorder.rank
        self._recorder = recorder
        self._address = store
        self._current: str | None = None
        self._connections = ""  # the name of the group for which the process group was made
        self._made: Callable[[], Any] = lambda: None  # the process group, which nothing here keeps alive
        self._joined = self._held = 0

    def enter(self, run: Run) -> None:
        """Leave all groups, and join the one that `run` names; set `RANK`, `WORLD_SIZE` and so on.

        Does nothing if this rank has entered the group already. If `run` says so, the process group of an earlier run
        serves, and counts its operations from one on again.

        Raises:
            RuntimeError: too many earlier groups cannot be freed; another process must take this rank's place.
        """
        if run.group == self._current:
            return
        if run.connections and run.connections == self._connections:
            self._take_over(run)
            return
        self._current, self._connections, self._made = None, "", lambda: None
        leave_groups()
        self._check_held_groups()
        self._record(run)
        os.environ.update(self._variables(run))
        device = self._set_device(run.world)
        if run.world.has_group:
            self._init(run, device)
            self._made = ref(default_group())
        self._current = self._connections = run.group

    def _take_over(self, run: Run) -> None:
        """Let the process group of an earlier run be that of this one."""
        self._begin_group(run)
        begin_anew()
        if run.world.observe:
            from pytest_ddp.observed.recording import process_group  # noqa: PLC0415  for observed groups only

            process_group.begin_anew(Announcer(self._recorder))
        os.environ.update(self._variables(run))
        self._current = run.group

    @property
    def is_settled(self) -> bool:
        """Whether nothing can go on in the process group, which is the only one, once all ranks have returned.

        That is so if they have entered the same number of collectives, and this rank has no threads and no messages.
        """
        try:
            groups = all_groups()
            same = len(groups) == 1 and groups[0] is self._made()
        except Exception:  # noqa: BLE001  a test may have put anything in the place of what torch knows of groups
            return False
        messages = not only_collectives() or (current.is_observed() and not current.record().only_collectives)
        return same and not messages and not has_other_threads()

    def _init(self, run: Run, device: torch.device | None) -> None:
        dist.init_process_group(
            run.world.backend,
            store=self.store(run.group),
            rank=self._rank,
            world_size=run.world.size,
            timeout=timedelta(seconds=run.group_timeout),
            device_id=device,
        )

    def store(self, prefix: str) -> Store:
        """Return a store that the ranks share; keys with different prefixes are apart."""
        return PrefixStore(prefix, self._store)

    def _variables(self, run: Run) -> dict[str, str]:
        """Return the variables of the environment by which processes find one another under torchrun."""
        world, node = run.world, str(run.world.node_of(self._rank))
        return {
            "RANK": str(self._rank),
            "LOCAL_RANK": str(world.local_rank(self._rank)),
            "WORLD_SIZE": str(world.size),
            "LOCAL_WORLD_SIZE": str(world.local_size(self._rank)),
            "NODE_RANK": node,
            "GROUP_RANK": node,
            "MASTER_ADDR": self._address[0],
            "MASTER_PORT": str(run.master_port),
        }

    def _check_held_groups(self) -> None:
        self._joined += 1
        if self._joined % CHECK_EVERY == 0:
            self._held = held_groups()
        if self._held > HELD_GROUPS_LIMIT:
            raise RuntimeError(f"{self._held} process groups of earlier runs cannot be freed: something refers to them")

    def _record(self, run: Run) -> None:
        """Observe groups from now on, or only record them; every rank does so before the group exists on any rank."""
        self._begin_group(run)
        record_to(None if run.world.observe else self._recorder)
        if not (run.world.observe or current.is_observed()):
            return
        from pytest_ddp.observed.recording import process_group  # noqa: PLC0415  for observed groups only

        process_group.stop_observing()
        if run.world.observe:
            process_group.observe(Announcer(self._recorder))

    def _begin_group(self, run: Run) -> None:
        patience = min(timedelta(seconds=run.group_timeout), default_pg_timeout)
        self._recorder.begin_group(key_of(run.group), patience)

    @cached_property
    def _store(self) -> Store:
        host, port = self._address
        return TCPStore(host, port, is_master=False, wait_for_workers=False)

    def _set_device(self, world: World) -> torch.device | None:
        """Make the rank's GPU the current one; return it if its group is bound to it."""
        if world.device != "cuda":
            return None
        device = device_of(self._rank, world)
        torch.cuda.set_device(device)
        return device if world.backend == "nccl" else None


def leave_groups() -> None:
    """Leave all process groups now and destroy them in a thread: gloo takes about 10 ms per rank for that."""
    forget_connections()
    if not dist.is_initialized():
        return
    groups = all_groups()  # keeps them alive past destroy_process_group
    dist.destroy_process_group()
    start_new_thread(_destroy, (groups,))  # `Thread.start` would wait until the thread runs


def _destroy(groups: list[Any]) -> None:
    with own_thread():
        groups.clear()
        gc.collect(0)


def held_groups() -> int:
    """Return the number of gloo groups that this process has: gloo opens one epoll file for each. 0 without /proc."""
    found = 0
    for file in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):  # the descriptor that reads this folder is closed by now
            found += file.readlink() == Path("anon_inode:[eventpoll]")
    return found
