"""Shares the machine among the workers of an xdist run: cores for tests on CPU, GPUs for tests on CUDA.

A test on CPU holds one core per rank, a test on CUDA one GPU per rank: all of them, if it has more ranks than that.
Without xdist there are no locks, and a test uses the GPUs from 0 on.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddp.planning.plan import Machine
from pytest_ddp.planning.world import World
from pytest_ddp.pytest_internals import base_temp

if sys.platform != "win32":
    import fcntl

_FOLDER = "ddp_slots"
_POLL_SECONDS = 0.002


class Workers:
    """Hooks of the process that starts the workers: it names their folder, and removes it at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._folder: Path | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send a worker the name of the folder."""
        self._folder = base_temp(self._config) / "ddp-slots"
        node.workerinput[_FOLDER] = str(self._folder)

    def pytest_unconfigure(self) -> None:
        """Remove the folder: every worker has ended."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def shared_folder(config: pytest.Config) -> Path | None:
    """Return the folder that a worker shares with the other workers; None if this process is not a worker."""
    folder = getattr(config, "workerinput", {}).get(_FOLDER)
    return None if folder is None else Path(folder)


@dataclass
class Leases:
    """Leases cores and GPUs to the processes that share `folder`; if that is None, there are no other processes."""

    folder: Path | None
    _slots: "dict[str, Slots]" = field(default_factory=dict)

    @contextmanager
    def hold(self, world: World, machine: Machine) -> Iterator[World]:
        """Wait for the cores or GPUs that a world needs, and hold them; give the world with its GPUs."""
        if self.folder is None:
            yield world
        elif world.device == "cuda":
            with self._slots_of(self.folder, "gpu", machine.cuda_devices).take(
                min(world.size, machine.cuda_devices)
            ) as gpus:
                yield replace(world, gpus=tuple(gpus[rank % len(gpus)] for rank in range(world.size)))
        else:
            with self._slots_of(self.folder, "core", machine.cores).take(min(world.processes, machine.cores)):
                yield world

    def close(self) -> None:
        """Close the lock files."""
        for slots in self._slots.values():
            slots.close()
        self._slots.clear()

    def _slots_of(self, folder: Path, kind: str, count: int) -> "Slots":
        if kind not in self._slots:
            self._slots[kind] = Slots(folder, kind, count)
        return self._slots[kind]


class Slots:
    """`count` numbered slots that processes take in turns: lock files that the kernel unlocks when a process dies.

    A process locks the gate while it collects its slots. So requests are served one at a time: small requests do not
    overtake a large one for ever, and no two processes each wait for slots that the other holds. Not thread-safe.
    """

    def __init__(self, folder: Path, kind: str, count: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._gate = _open(folder / f"{kind}-gate")
        self._files = [_open(folder / f"{kind}-{slot}") for slot in range(count)]
        self._preferred = list(range(count))

    @contextmanager
    def take(self, wanted: int) -> Iterator[list[int]]:
        """Wait for `wanted` slots and hold them; give their numbers: those of the last time, if they are free.

        Raises:
            ValueError: there are fewer slots.
        """
        if wanted > len(self._files):
            raise ValueError(f"{wanted} slots wanted, there are {len(self._files)}")
        with ExitStack() as held:
            with ExitStack() as gate:
                _lock(self._gate)
                gate.callback(fcntl.flock, self._gate, fcntl.LOCK_UN)
                taken = self._collect(wanted, held)
            self._preferred.sort(key=lambda slot: slot not in taken)
            yield sorted(taken)

    def _collect(self, wanted: int, held: ExitStack) -> list[int]:
        taken: list[int] = []
        while True:
            for slot in (slot for slot in self._preferred if slot not in taken):
                if len(taken) < wanted and _lock(self._files[slot], wait=False):
                    held.callback(self._release, slot)
                    taken.append(slot)
            if len(taken) == wanted:
                return taken
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Close the lock files, which frees all slots that are still held."""
        for file in (self._gate, *self._files):
            os.close(file)
        self._files.clear()

    def _release(self, slot: int) -> None:
        if self._files:  # otherwise they are closed, and other files may have their descriptors
            fcntl.flock(self._files[slot], fcntl.LOCK_UN)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _lock(file: int, *, wait: bool = True) -> bool:
    """Lock a file; if it is locked already, wait or return False."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
