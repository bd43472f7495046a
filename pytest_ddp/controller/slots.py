"""Numbered slots that processes take turns in: lock files in one folder, freed by the kernel when their holder dies.

A process collects its slots while it holds the gate. Requests are thus served one at a time: a large one is not
overtaken for ever by small ones, and no two processes wait for what the other has half of.
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import lock_descriptor, unlock_descriptor

_POLL_SECONDS = 0.002


class Slots:
    """`count` slots called `kind` that every process using the same `folder` shares; not for several threads at once.

    The lock files stay open, so taking slots that are free costs a few system calls.
    """

    def __init__(self, folder: Path, kind: str, count: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._gate = _open(folder / f"{kind}-gate")
        self._files = [_open(folder / f"{kind}-{slot}") for slot in range(count)]
        self._preferred = list(range(count))

    @contextmanager
    def take(self, wanted: int) -> Iterator[list[int]]:
        """Wait until `wanted` slots are held and give their numbers, those of last time if they are free.

        Raises:
            ValueError: when there are not so many.
        """
        if wanted > len(self._files):
            raise ValueError(f"{wanted} slots wanted, there are {len(self._files)}")
        with ExitStack() as held:
            with ExitStack() as gate:
                lock_descriptor(self._gate, poll_interval=_POLL_SECONDS)
                gate.callback(unlock_descriptor, self._gate)
                taken = self._collect(wanted, held)
            self._preferred.sort(key=lambda slot: slot not in taken)
            yield sorted(taken)

    def _collect(self, wanted: int, held: ExitStack) -> list[int]:
        taken: list[int] = []
        while True:
            for slot in (slot for slot in self._preferred if slot not in taken):
                if len(taken) < wanted and lock_descriptor(self._files[slot], blocking=False):
                    held.callback(self._release, slot)
                    taken.append(slot)
            if len(taken) == wanted:
                return taken
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Close the lock files, which frees whatever is still held."""
        for file in (self._gate, *self._files):
            os.close(file)
        self._files.clear()

    def _release(self, slot: int) -> None:
        if self._files:  # else closed, and free: their numbers may be another file's by now
            unlock_descriptor(self._files[slot])


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
