"""Sees who waits for the future of an operation rather than for its handle.

That is a call of `Future.wait`; a future made by `then` comes no sooner than the one it is made of. What waits in C++
is not seen here (see `reducer`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from pytest_ddp.observed.entry import Entry
from pytest_ddp.observed.record import Record

_Future: Any = torch._C.Future  # noqa: SLF001  the class of all futures, whose methods Python calls
_METHODS = {name: getattr(_Future, name) for name in ("wait", "then")}
_entries: Any = WeakIdKeyDictionary()


def watch_futures(record: Record) -> None:
    """Tell the record of waits for futures from now on."""

    def wait(future: Any) -> Any:
        with _waiting(record, _entries.get(future, ())):
            return _METHODS["wait"](future)

    def then(future: Any, callback: Callable[[Any], Any]) -> Any:
        following = _METHODS["then"](future, callback)
        _entries[following] = _entries.get(future, ())
        return following

    _Future.wait, _Future.then = wait, then


def ignore_futures() -> None:
    """Leave futures alone again."""
    for name, method in _METHODS.items():
        setattr(_Future, name, method)


def remember(future: Any, entries: Sequence[Entry]) -> None:
    """Take note of the operations that a future is of."""
    _entries[future] = tuple(entries)


@contextmanager
def _waiting(record: Record, entries: Sequence[Entry]) -> Iterator[None]:
    if not entries:
        yield
        return
    with record.waiting(entries):
        yield
