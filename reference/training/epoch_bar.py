"""The progress within an epoch, on rank 0's terminal: a bar, batches, loss, speed and remaining time."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from torch import Tensor

_SECONDS = 0.5  # between two looks at the loss: on a GPU, each look waits for the step


class EpochBar:
    """A bar that is shown while the block runs; nothing if the console is not a terminal.

    Args:
        console: where to show it.
        title: of the epoch.
        batches: of this rank in the epoch.
        done: of these, before a resumed training goes on.
    """

    def __init__(self, console: Console, title: str, batches: int, done: int) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[details]}"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task(title, total=batches, completed=done, details="")
        self._examples, self._began, self._looked = 0, time.perf_counter(), 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._bar.stop()

    def advance(self, batches: int, examples: int, loss: Tensor) -> None:
        """Count a step: batches of this rank, examples of all ranks, and this rank's loss."""
        self._examples += examples
        self._bar.advance(self._task, batches)
        now = time.perf_counter()
        if not self._bar.disable and now - self._looked > _SECONDS:
            self._looked = now
            speed = self._examples / (now - self._began)
            self._bar.update(self._task, details=f"loss {loss.item():.4f}, {speed:.0f} examples/s")
