"""What the code of a process shares: global random generators, clocks, its process id, environment variables."""

import math
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist

from conformance.scenarios.drawn import Drawn

_SECONDS = 10**6  # eleven and a half days: the date is another one too
_PROCESSES = 1000


@contextmanager
def noting_moved_generators(moved: list[str]) -> Iterator[None]:
    """Add to `moved` which of "torch", "random" and "numpy" the block draws from or seeds.

    Each generator draws before the block, so that seeding it as it was seeded at first moves it, too.
    """
    torch.rand(())
    random.random()  # noqa: S311  no secret
    np.random.random()  # noqa: NPY002  the global generator is the one in question
    before = states_of_global_generators()
    yield
    moved += [name for name, state in states_of_global_generators().items() if state != before[name]]


def seed_global_generators(seed: int) -> None:
    """Seed the global generators of torch, Python and NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  old transforms use it


def states_of_global_generators() -> dict[str, Any]:
    """Return the states of the global generators of torch, Python and NumPy, as values that can be compared."""
    numpys = np.random.get_state(legacy=False)["state"]  # noqa: NPY002  see above
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "random": random.getstate(),
        "numpy": (numpys["key"].tobytes(), numpys["pos"]),
    }


@contextmanager
def another_run() -> Iterator[None]:
    """Let `time.time`, `time.time_ns` and `os.getpid` return what another process would see some days later.

    `time.monotonic`, which timeouts go by, stays as it is.
    """
    moved = ((time, "time", _SECONDS), (time, "time_ns", _SECONDS * 10**9), (os, "getpid", _PROCESSES))
    with ExitStack() as patches:
        for module, name, by in moved:
            patches.enter_context(mock.patch.object(module, name, _moved(getattr(module, name), by)))
        yield


def _moved(read: Callable[[], Any], by: int) -> Callable[[], Any]:
    return lambda: read() + by


@contextmanager
def on_two_machines(drawn: Drawn) -> Iterator[None]:
    """Set `LOCAL_RANK` and `LOCAL_WORLD_SIZE` as torchrun does on two machines, if the scenario or case asks for it.

    A submission that read them in an earlier run, or when it was imported, keeps the values of one machine.
    """
    if not drawn.two_machines:
        yield
        return
    local = math.ceil(dist.get_world_size() / 2)  # the second machine has as many ranks, or one fewer
    places = {"LOCAL_RANK": str(dist.get_rank() % local), "LOCAL_WORLD_SIZE": str(local)}
    with mock.patch.dict(os.environ, places):
        yield
