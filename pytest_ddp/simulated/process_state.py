"""What a process has once, and each simulated rank has for itself.

This is random numbers, the environment, the working directory, the filters of warnings, the default dtype, and
`sys.stdout` and `sys.stderr`. When the baton passes from one rank to another, the state of the first is kept and that
of the other is put back. The environment is Python's `os.environ`: C code sees the last change that any rank has made.
"""

import ctypes
import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from pytest_ddp.simulated.scheduler import Rank


class State(NamedTuple):
    """What belongs to one rank."""

    torch_numbers: torch.Tensor
    python_numbers: tuple[Any, ...]
    numpy_numbers: Any
    folder: str
    environment: dict[Any, Any]
    warning_filters: Any
    show_warning: Any
    collect_warning: Any
    dtype: torch.dtype
    output: Any
    errors: Any


class ProcessState:
    """The state of each rank."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._of_ranks: dict[int, State] = {}
        self._numpy = NumpyNumbers()
        self._now = self._initial = self._current(None)

    @classmethod
    @contextmanager
    def kept(cls, world_size: int) -> Iterator["ProcessState"]:
        """Restore the number of threads and the hook for uncaught exceptions at the end; init_process_group sets it."""
        state = cls(world_size)
        threads = torch.get_num_threads()
        excepthook = sys.excepthook
        torch.set_num_threads(1)
        try:
            yield state
        finally:
            torch.set_num_threads(threads)
            sys.excepthook = excepthook
            _repair_environment()

    def switch(self, old: Rank | None, new: Rank | None) -> None:
        """Keep the state of one rank, or of the process, and restore that of the next."""
        now = self._current(self._now)
        if old is None:
            self._initial = now
        else:
            self._of_ranks[old.number] = now
        following = self._initial if new is None else self._of_ranks.get(new.number) or self._first(new.number)
        self._restore(now, following)
        self._now = following

    def _first(self, rank: int) -> State:
        """Return the state with which a rank begins: that of the process, with an environment of its own."""
        environment = dict(self._initial.environment)
        for name, value in _variables(rank, self._world_size).items():
            environment[os.environ.encodekey(name)] = os.environ.encodevalue(value)
        return self._initial._replace(environment=environment, warning_filters=list(self._initial.warning_filters))

    def _current(self, known: State | None) -> State:
        """Return the state of the process now; the values of `known` where they are equal."""
        python_numbers = random.getstate()
        if known is not None and python_numbers == known.python_numbers:
            python_numbers = known.python_numbers
        return State(
            torch.get_rng_state(),
            python_numbers,
            self._numpy.current(),
            os.getcwd(),  # noqa: PTH109  compared as text
            os.environ._data,  # type: ignore[attr-defined]  # noqa: SLF001  of Python, for 25 years
            warnings.filters,
            warnings.showwarning,
            warnings._showwarnmsg_impl,  # type: ignore[attr-defined]  # noqa: SLF001  catch_warnings sets it
            torch.get_default_dtype(),
            sys.stdout,
            sys.stderr,
        )

    def _restore(self, now: State, state: State) -> None:
        torch.set_rng_state(state.torch_numbers)
        if state.python_numbers is not now.python_numbers:
            random.setstate(state.python_numbers)
        self._numpy.restore(state.numpy_numbers)
        if state.folder != now.folder:
            os.chdir(state.folder)
        os.environ._data = state.environment  # type: ignore[attr-defined]  # noqa: SLF001  likewise
        os.environb._data = state.environment  # type: ignore[attr-defined]  # noqa: SLF001  likewise
        _restore_warnings(state)
        if state.dtype is not now.dtype:
            torch.set_default_dtype(state.dtype)
        sys.stdout, sys.stderr = state.output, state.errors


def _restore_warnings(state: State) -> None:
    if warnings.filters is not state.warning_filters:
        warnings.filters = state.warning_filters
        warnings._filters_mutated()  # type: ignore[attr-defined]  # noqa: SLF001  its cache
    warnings.showwarning = state.show_warning
    warnings._showwarnmsg_impl = state.collect_warning  # type: ignore[attr-defined]  # noqa: SLF001  as above


def _variables(rank: int, world_size: int) -> dict[str, str]:
    """Return the variables that torchrun sets for a process."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    return {**{name: str(value) for name, value in own.items()}, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def _repair_environment() -> None:
    """Give C code the environment that Python has: ranks set variables of the process."""
    for name, value in os.environ.items():
        os.putenv(name, value)


class NumpyNumbers:
    """The state of numpy's global random numbers.

    To ask numpy for its state takes 50 microseconds, and to set it 40. But a rank seldom uses it, and whether it has
    shows in the memory of its generator.
    """

    def __init__(self) -> None:
        self._memory = b""
        self._state: Any = None

    def current(self) -> Any:
        """Return the state; the object that was restored if it is still that one."""
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return None
        memory = _memory(numpy)
        if memory is None or memory != self._memory or self._state is None or self._state["has_gauss"]:
            self._memory, self._state = memory or b"", numpy.random.get_state(legacy=False)
        return self._state

    def restore(self, state: Any) -> None:
        """Restore a state."""
        if state is None or state is self._state:
            return
        numpy = sys.modules["numpy"]
        numpy.random.set_state(state)
        self._memory, self._state = _memory(numpy) or b"", state


def _memory(numpy: Any) -> bytes | None:
    """Return the memory of numpy's generator; None if the program has chosen another generator than the usual one."""
    generator = numpy.random.get_bit_generator()
    if type(generator).__name__ != "MT19937":
        return None
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)


_MT19937_BYTES = 624 * 4 + 4  # the numbers, and which one is next
