"""Ctrl-C ends a training between two steps, on every rank after the same one, so that a checkpoint can be saved.

Python's own answer to Ctrl-C is an exception at any place. On several ranks that loses the training: one rank is
interrupted in a backward, another one in a collective that the first will never enter. Here a handler only notes the
signal. After each step, all ranks exchange their notes. Nobody waits for the exchange: its result is read after the
next step, so the training ends one step late. After the last step they exchange once more, and wait.

The process that started the ranks gets the signal too. It waits for them. A second Ctrl-C ends all at once.

Source: Python's documentation of `signal`, "Execution of Python signal handlers".
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

import torch

from reference.gradients import launch_flags
from reference.training.rank_zero import world_size

_SAME_SECONDS = 1.0  # signals within this time are one: a job's agent passes on what the terminal has sent already


class Interrupted(Exception):  # noqa: N818  # no error
    """A rank was interrupted. It is raised on every rank, after the same step."""


class Interruption:
    """Notes Ctrl-C on this rank while the block runs, instead of raising KeyboardInterrupt.

    Args:
        device: of the tensors that the ranks exchange.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._noted = False
        self._pending: Any = None
        self._handler: Any = None

    def __enter__(self) -> Self:
        self._handler = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        signal.signal(signal.SIGINT, self._handler)
        if self._pending is not None and kind is None:
            self._pending.wait()

    def on_any_rank(self) -> bool:
        """Whether any rank was interrupted before the last call of this method. Call on every rank after each step."""
        if world_size() == 1:
            return self._noted
        before, self._pending = self._pending, launch_flags([self._noted], self._device)
        return before is not None and any(before.wait())

    def by_now_on_any_rank(self) -> bool:
        """Whether any rank was interrupted before this call, which waits for all ranks. Call after the last step."""
        if world_size() == 1:
            return self._noted
        return any(launch_flags([self._noted], self._device).wait())

    def _note(self, _: int, __: FrameType | None) -> None:
        self._noted = True


@contextmanager
def ranks_stop_first() -> Iterator[Callable[[], bool]]:
    """In the process that starts ranks: leave the first Ctrl-C to the ranks; a later one raises KeyboardInterrupt.

    Yields:
        A function that says whether there was a Ctrl-C.
    """
    noted: list[float] = []

    def note(_: int, __: FrameType | None) -> None:
        noted.append(time.monotonic())
        if len(noted) == 1:
            sys.stderr.write("\nCtrl-C: the ranks finish a step and save. Press it again to end at once.\n")
        if noted[-1] - noted[0] > _SAME_SECONDS:
            raise KeyboardInterrupt

    handler = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(noted)
    finally:
        signal.signal(signal.SIGINT, handler)
