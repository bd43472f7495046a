"""Sees who waits for the future of an operation rather than for its handle.

In Python that is a call of `Future.wait`; a future made by `then` comes no sooner than the one it is made of. torch's
own DDP waits in C++, once its last gradients are computed and before backward returns.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import Variable
from torch.utils.weak import WeakIdKeyDictionary

from pytest_ddp.observed.entry import Entry
from pytest_ddp.observed.record import Record

_Future: Any = torch._C.Future  # noqa: SLF001  the class of all futures, whose methods Python calls
_METHODS = {name: getattr(_Future, name) for name in ("wait", "then")}
_BY_CPP = "backward"  # the function that operations of torch's own DDP were called by (see `Entry.called`)
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


def given(future: Any, entries: Sequence[Entry], record: Record) -> None:
    """Take note of a future that is given away.

    One that was asked for by C++ code in a backward pass is waited for at its end: a callback of autograd's engine,
    queued before DDP's own, says so.
    """
    _entries[future] = tuple(entries)
    if record.clock.running and any(entry.called == _BY_CPP for entry in entries):
        engine: Any = Variable._execution_engine  # noqa: SLF001  torch's own way
        engine.queue_callback(lambda: record.will_wait(entries))


@contextmanager
def _waiting(record: Record, entries: Sequence[Entry]) -> Iterator[None]:
    if not entries:
        yield
        return
    with record.waiting(entries):
        yield
