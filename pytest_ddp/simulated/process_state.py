"""What a process has once, and each simulated rank has for itself.

This is random numbers, the environment, the working directory and the filters of warnings. When the baton passes from
one rank to another, the state of the first is kept and that of the other is put back. The environment is Python's
`os.environ`: C code sees the last change that any rank has made.
"""

import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
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
            torch.set_num_threads(threads)
            sys.excepthook = excepthook

    def switch(self, old: Rank | None, new: Rank | None) -> None:
        """Keep the state of one rank, or of the process, and restore that of the next."""
        now = _current()
        if old is None:
            self._initial = now
        else:
            self._of_ranks[old.number] = now
        _restore(self._initial if new is None else self._of_ranks.get(new.number) or _copied(self._initial))


def _current() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    return (
        torch.get_rng_state(),
        random.getstate(),
        numpy.random.get_state() if numpy else None,
        os.getcwd(),  # noqa: PTH109  compared as text
        os.environ._data,  # type: ignore[attr-defined]  # noqa: SLF001  of Python, for 25 years
        (warnings.filters, warnings.showwarning),
    )


def _copied(state: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the state with which a rank begins: that of the process, with an environment of its own."""
    *numbers, environment, (filters, show) = state
    return *numbers, dict(environment), (list(filters), show)


def _restore(state: tuple[Any, ...]) -> None:
    numbers, python_numbers, numpy_numbers, folder, environment, (filters, show) = state
    torch.set_rng_state(numbers)
    random.setstate(python_numbers)
    if numpy_numbers is not None:
        sys.modules["numpy"].random.set_state(numpy_numbers)
    if os.getcwd() != folder:  # noqa: PTH109  likewise
        os.chdir(folder)
    os.environ._data = environment  # type: ignore[attr-defined]  # noqa: SLF001  likewise
    if warnings.filters is not filters:
        warnings.filters, warnings.showwarning = filters, show
        warnings._filters_mutated()  # type: ignore[attr-defined]  # noqa: SLF001  its cache
