"""Handles of operations in flight, and their futures: both record the waits for the operation.

A wait in Python for a future is seen because `Future.wait`, `then` and `done` are patched. A wait in C++ is not, with
one exception: the reducer of torch's DDP. It takes the future of each bucket, and waits for all of them in a callback
at the end of backward. For each of these futures we queue a callback that runs before the reducer's and waits for the
same future. Without it, a rank that waits there for ever would seem to compute.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import graph
from torch.utils.weak import WeakIdKeyDictionary

from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.recording.call_site import is_torch_file
from pytest_ddp.observed.recording.record import Record
from pytest_ddp.torch_internals import WORK_GETTERS, Future, call_after_backward, runs_backward

NO_TIMEOUT = timedelta(0)  # as in torch
_DELEGATED = (
    *WORK_GETTERS,
    "block_current_stream",
    "result",
    "is_success",
    "exception",
    "source_rank",
    "get_future_result",
)
_ORIGINALS = {name: getattr(Future, name) for name in ("wait", "then", "done")}
_entries: Any = WeakIdKeyDictionary()  # the operations of each future


class DelegatingWork(dist.Work):
    """A handle whose methods in `_DELEGATED` call those of `real`, the real handle."""

    def __init__(self, real: Any) -> None:
        super().__init__()
        self.real = real


for _method in _DELEGATED:
    setattr(DelegatingWork, _method, lambda work, method=_method: getattr(work.real, method)())


class ObservedWork(DelegatingWork):
    """Records the waits for an operation and its completion."""

    def __init__(self, real: Any, entries: Sequence[Entry], record: Record) -> None:
        super().__init__(real)
        self._entries = tuple(entries)
        self._record = record

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until the operation is complete; on CUDA, make the current stream wait."""
        with self._record.waiting(self._entries, timeout or None):
            return bool(self.real.wait(timeout))

    def synchronize(self) -> None:
        """Make the current CUDA stream wait for the operation."""
        with self._record.waiting(self._entries):
            self.real.synchronize()

    def is_completed(self) -> bool:
        """Whether the operation is complete."""
        if completed := bool(self.real.is_completed()):
            self._record.mark_completed(self._entries)
        return completed

    def get_future(self) -> torch.futures.Future[Any]:
        """Return the real future, because C++ code cannot wait for another kind."""
        future: torch.futures.Future[Any] = self.real.get_future()
        _entries[future] = self._entries
        self._record.track_future(future, self._entries)
        if runs_backward() and _called_by_reducer():
            _wait_before_reducer(self._record, future, self._entries)
        return future


def patch_futures(record: Record) -> None:
    """Record waits for futures from now on."""

    def wait(future: Any) -> Any:
        entries = _entries.get(future)
        with record.waiting(entries) if entries else nullcontext():
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


def called_from_cpp(depth: int) -> bool:
    """Whether C++ code in a backward pass made a call: `depth` frames above the caller is autograd, or no frame."""
    try:
        frame = sys._getframe(depth + 1)  # noqa: SLF001  `inspect` is slow
    except ValueError:
        return True
    return frame.f_code.co_filename == graph.__file__


def _release_held(record: Record, future: Any) -> None:
    """Release the held operation of a future; all held operations if the future's origin is unknown."""
    if _ORIGINALS["done"](future):
        return
    held = record.held_futures
    for work in [held[future]] if future in held else dict.fromkeys(held.values()):
        work.wait()


def _called_by_reducer() -> bool:
    """Whether `get_future` was called by C++, by torch's communication hooks, or by a hook that has a `GradBucket`."""
    try:
        frame = sys._getframe(2)  # noqa: SLF001  the caller of `get_future`
    except ValueError:  # a thread of autograd has no Python frame there
        return True
    return is_torch_file(frame.f_code.co_filename) or any(
        isinstance(value, dist.GradBucket) for value in frame.f_locals.values()
    )


def _wait_before_reducer(record: Record, future: "torch.futures.Future[Any]", entries: Sequence[Entry]) -> None:
    def wait() -> None:
        with suppress(Exception), record.waiting(entries):  # the reducer raises the same error itself
            future.wait()

    if future in record.held_futures and not record.clock.computes_gradients:
        wait()  # now: the reducer's callback may be running already
    else:
        call_after_backward(wait)
