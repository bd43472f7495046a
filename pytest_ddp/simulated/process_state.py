"""What a process has once, and each simulated rank has for itself: random numbers, the environment, the directory.

When the baton passes from one rank to another, the state of the first is kept and that of the other is put back.
"""

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pytest_ddp.simulated.scheduler import Rank


class ProcessState:
    """The state of each rank."""

    def __init__(self) -> None:
        self._initial = _current()
        self._of_ranks: dict[int, tuple[Any, ...]] = {}

    @classmethod
    @contextmanager
    def kept(cls, _world_size: int) -> Iterator["ProcessState"]:
        """Restore the state of the process at the end."""
        state = cls()
        threads = torch.get_num_threads()
        excepthook = sys.excepthook
        torch.set_num_threads(1)
        try:
            yield state
        finally:
            _restore(state._initial)
            torch.set_num_threads(threads)
            sys.excepthook = excepthook

    def switch(self, old: Rank | None, new: Rank | None) -> None:
        """Keep the state of one rank and restore that of another; ranks begin with the state of the process."""
        if old is not None:
            self._of_ranks[old.number] = _current()
        _restore(self._initial if new is None else self._of_ranks.get(new.number, self._initial))


def _current() -> tuple[Any, ...]:
    return torch.get_rng_state(), random.getstate(), Path.cwd()


def _restore(state: tuple[Any, ...]) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    if Path.cwd() != state[2]:
        os.chdir(state[2])
