"""Records waits for the future of an operation, which bypass the operation's handle.

Waits in Python are seen because `Future.wait`, `then` and `done` are patched. Waits in C++ are not, with one exception:
the reducer of torch's DDP. It takes the future of each bucket, and waits for all of them in a callback at the end of
backward. For each of these futures we queue a callback that runs before the reducer's and waits for the same future.
Without it, a rank that waits there for ever would seem to compute.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import graph
from torch.utils.weak import WeakIdKeyDictionary

from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.recording.call_site import is_torch_file
from pytest_ddp.observed.recording.record import Record
from pytest_ddp.torch_internals import Future, call_after_backward, runs_backward

_ORIGINALS = {name: getattr(Future, name) for name in ("wait", "then", "done")}
_entries: Any = WeakIdKeyDictionary()


def patch_futures(record: Record) -> None:
    """Record waits for futures from now on."""

    def wait(future: Any) -> Any:
        with _waiting(record, _entries.get(future, ())):
            _release_held(record, future)
            return _ORIGINALS["wait"](future)

    def then(future: Any, callback: Callable[[Any], Any]) -> Any:
        following = _ORIGINALS["then"](future, callback)
        _entries[following] = _entries.get(future, ())
        if future in record.held_futures:
            record.held_futures[following] = record.held_futures[future]
        return following

    def done(future: Any) -> bool:
        if future in record.held_futures:
            record.held_futures[future].is_completed()  # polls the gate
        return bool(_ORIGINALS["done"](future))

    Future.wait, Future.then, Future.done = wait, then, done


def restore_futures() -> None:
    """Stop recording waits for futures."""
    for name, method in _ORIGINALS.items():
        setattr(Future, name, method)


def register_future(future: Any, entries: Sequence[Entry]) -> None:
    """Associate a future with its operations."""
    _entries[future] = tuple(entries)


def record_reducer_wait(record: Record, future: "torch.futures.Future[Any]", entries: Sequence[Entry]) -> None:
    """Wait for the future at the end of backward if DDP's reducer takes it, two frames above this one."""
    if not (runs_backward() and _taken_by_reducer()):
        return
    if future in record.held_futures and not record.clock.computes_gradients:
        _wait(record, future, entries)  # now: the reducer's callback may be running already
    else:
        call_after_backward(partial(_wait, record, future, entries))


def called_from_cpp(depth: int) -> bool:
    """Whether C++ code in a backward pass made a call: `depth` frames above the caller is autograd, or no frame."""
    try:
        frame = sys._getframe(depth + 1)  # noqa: SLF001  `inspect` is slow
    except ValueError:
        return True
    return frame.f_code.co_filename == graph.__file__


def _release_held(record: Record, future: Any) -> None:
    """Release the held operation behind a future; all held operations if the future's origin is unknown."""
    if _ORIGINALS["done"](future):
        return
    known = future in record.held_futures
    for work in [record.held_futures[future]] if known else dict.fromkeys(record.held_futures.values()):
        work.wait()


@contextmanager
def _waiting(record: Record, entries: Sequence[Entry]) -> Iterator[None]:
    if not entries:
        yield
        return
    with record.waiting(entries):
        yield


def _wait(record: Record, future: "torch.futures.Future[Any]", entries: Sequence[Entry]) -> None:
    with suppress(Exception), record.waiting(entries):  # the reducer raises the same error itself
        future.wait()


def _taken_by_reducer() -> bool:
    """Whether `get_future` was called by C++, by torch's communication hooks, or by a hook that has a `GradBucket`."""
    try:
        frame = sys._getframe(3)  # noqa: SLF001  the caller of `get_future`
    except ValueError:  # a thread of autograd has no Python frame there
        return True
    return is_torch_file(frame.f_code.co_filename) or any(
        isinstance(value, dist.GradBucket) for value in frame.f_locals.values()
    )
