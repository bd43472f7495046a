"""Kills simulated ranks where they write to files.

A rank that is killed in a write has written the first half of it. What it wrote before is in the file. It does nothing
more: its `finally` blocks run, because a thread cannot end otherwise, but they change no file.

Files that are opened with `open`, `io.open` or `Path.open` are seen, and `os.fsync`, `os.replace`, `os.rename` and
`os.unlink`, which the methods of `Path` call. Only files opened to be written count.
"""

import builtins
import io
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Self
from unittest import mock

from pytest_ddp.simulated.problems import RankKilled

_CHANGES = ("fsync", "replace", "rename", "unlink")
_originals = {name: getattr(os, name) for name in _CHANGES}
_open = io.open


class FileFaults:
    """While `watched`, asks before each operation on files of a simulated rank.

    Args:
        rank: returns the rank that calls; None outside of ranks.
        before: called with the rank and the operation, such as "write#3"; it raises RankKilled if the rank is killed
            there, or is dead already.
    """

    def __init__(self, rank: Callable[[], int | None], before: Callable[[int, str], None]) -> None:
        self._rank = rank
        self._before = before
        self._numbers: dict[int, Iterator[int]] = defaultdict(partial(itertools.count, 1))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """See the operations on files while the block runs."""
        with ExitStack() as patches:
            for name in _CHANGES:
                patches.enter_context(mock.patch.object(os, name, partial(self._change, name)))
            for module in (io, builtins):
                patches.enter_context(mock.patch.object(module, "open", self._opened))
            yield

    def ask(self, kind: str) -> None:
        """Count an operation of the rank that calls; raise if the rank is killed there."""
        rank = self._rank()
        if rank is not None:
            self._before(rank, f"{kind}#{next(self._numbers[rank])}")

    def _change(self, name: str, *args: Any, **keywords: Any) -> Any:
        self.ask(name)
        return _originals[name](*args, **keywords)

    def _opened(self, file: Any, mode: str = "r", *args: Any, **keywords: Any) -> Any:
        if self._rank() is None or not set(mode) & set("wax+"):
            return _open(file, mode, *args, **keywords)
        self.ask("open")
        return _File(_open(file, mode, *args, **keywords), self)


class _File:
    """A file that is being written: each write is an operation, and is in the file when it returns."""

    def __init__(self, file: Any, faults: FileFaults) -> None:
        self._file, self._faults = file, faults

    def write(self, data: Any) -> int:
        """Write data; half of it if the rank is killed here."""
        try:
            self._faults.ask("write")
        except RankKilled as killed:
            if not killed.dead_before:
                self._file.write(data[: len(data) // 2])
                self._file.flush()
            raise
        self._file.write(data)
        self._file.flush()
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
