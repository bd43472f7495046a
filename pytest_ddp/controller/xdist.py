"""What a distributed test may use while it runs, so that the workers of one xdist run do not get in each other's way.

A test on CPU holds as many of the machine's cores as it has ranks (all of them if it has more), a test on CUDA one GPU
per rank. Without xdist there is nobody to share with: no files, no locks, and the GPUs from 0 on.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddp.planning.plan import Machine
from pytest_ddp.planning.world import World
from pytest_ddp.pytest_internals import base_temp

if TYPE_CHECKING:
    from pytest_ddp.controller.slots import Slots


@dataclass
class Leases:
    """Leases out a machine's cores and GPUs among the processes that share `folder`; None: all is ours."""

    folder: Path | None
    _slots: "dict[str, Slots]" = field(default_factory=dict)

    @contextmanager
    def hold(self, world: World, machine: Machine) -> Iterator[World]:
        """Wait for what the world needs and hold it; give the world with the GPUs that it got."""
        if self.folder is None:
            yield world
        elif world.device == "cuda":
            with self._of("gpu", machine.cuda_devices).take(world.size) as gpus:
                yield replace(world, gpus=tuple(gpus))
        else:
            with self._of("core", machine.cores).take(min(world.size, machine.cores)):
                yield world

    def close(self) -> None:
        """Close the lock files."""
        for slots in self._slots.values():
            slots.close()
        self._slots.clear()

    def _of(self, kind: str, count: int) -> "Slots":
        from pytest_ddp.controller.slots import Slots  # noqa: PLC0415  its lock library takes 20 ms to import

        if self.folder is None:
            raise RuntimeError("there is nobody to share with")
        if kind not in self._slots:
            self._slots[kind] = Slots(self.folder, kind, count)
        return self._slots[kind]


_FOLDER = "ddp_slots"


def shared_folder(config: pytest.Config) -> Path | None:
    """Return the folder that this process, a worker, shares with the others; None when it is no worker."""
    folder = getattr(config, "workerinput", {}).get(_FOLDER)
    return None if folder is None else Path(folder)


class Workers:
    """Hooks of the process that starts the workers: makes the folder known to them, and removes it at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._folder: Path | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker which folder it is."""
        self._folder = base_temp(self._config) / "ddp-slots"
        node.workerinput[_FOLDER] = str(self._folder)

    def pytest_unconfigure(self) -> None:
        """Remove the folder: every worker has ended."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
