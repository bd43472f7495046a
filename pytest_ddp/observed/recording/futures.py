"""Sees who waits for the future of an operation rather than for its handle.

That is a call of `Future.wait`; a future made by `then` comes no sooner than the one it is made of. What waits in C++
is not seen here (see `reducer`). A future that a gate keeps back completes when somebody waits for it.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable, graph
from torch.utils.weak import WeakIdKeyDictionary

from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.recording.call_site import is_torchs
from pytest_ddp.observed.recording.record import Record

_Future: Any = torch._C.Future  # noqa: SLF001  the class of all futures, whose methods Python calls
_METHODS = {name: getattr(_Future, name) for name in ("wait", "then", "done")}
_entries: Any = WeakIdKeyDictionary()


def watch_futures(record: Record) -> None:
    """Tell the record of waits for futures from now on."""

    def wait(future: Any) -> Any:
        with _waiting(record, _entries.get(future, ())):
            _let_complete(record, future)
            return _METHODS["wait"](future)

    def then(future: Any, callback: Callable[[Any], Any]) -> Any:
        following = _METHODS["then"](future, callback)
        _entries[following] = _entries.get(future, ())
        if future in record.held:
            record.held[following] = record.held[future]
        return following

    def done(future: Any) -> bool:
        if future in record.held:
            record.held[future].is_completed()
        return bool(_METHODS["done"](future))

    _Future.wait, _Future.then, _Future.done = wait, then, done


def ignore_futures() -> None:
    """Leave futures alone again."""
    for name, method in _METHODS.items():
        setattr(_Future, name, method)


def remember(future: Any, entries: Sequence[Entry]) -> None:
    """Take note of the operations that a future is of."""
    _entries[future] = tuple(entries)


def _let_complete(record: Record, future: Any) -> None:
    """Let the gate complete what a future is of; everything for one of unknown origin, which may follow from any."""
    if _METHODS["done"](future):
        return
    known = future in record.held
    for work in [record.held[future]] if known else dict.fromkeys(record.held.values()):
        work.wait()


@contextmanager
def _waiting(record: Record, entries: Sequence[Entry]) -> Iterator[None]:
    if not entries:
        yield
        return
    with record.waiting(entries):
        yield


# Makes the waits of torch's own DDP visible.
# Its reducer takes the future of each bucket and waits for all of them in C++, in a callback at the end of backward.
# That wait is not seen, and a rank that waits in vain would look as if it computed. So for every future that the
# reducer takes, a callback of ours is queued, which comes before the reducer's own and waits for the same future.

_NO_TASK = -1


def foresee_wait(record: "Record", future: "torch.futures.Future[Any]", entries: "Sequence[Entry]") -> None:
    """Wait for the future at the end of backward, if it is the reducer that takes it from our caller."""
    in_backward = torch._C._current_graph_task_id() != _NO_TASK  # noqa: SLF001  of this thread; no public way
    if not (in_backward and _taken_by_reducer()):
        return
    if future in record.held and not record.clock.computes_gradients:
        _wait(record, future, entries)  # at once: the reducer may be in its own callback already
    else:
        Variable._execution_engine.queue_callback(partial(_wait, record, future, entries))  # noqa: SLF001  torch's way


def _wait(record: "Record", future: "torch.futures.Future[Any]", entries: "Sequence[Entry]") -> None:
    with suppress(Exception), record.waiting(entries):  # the reducer is about to meet the same error, and raises it
        future.wait()


def taken_by_cpp(depth: int) -> bool:
    """Whether C++ code in a backward pass called a method; `depth` is how many frames its caller is below ours."""
    try:
        frame = sys._getframe(depth + 1)  # noqa: SLF001  as below
    except ValueError:
        return True
    return frame.f_code.co_filename == graph.__file__


def _taken_by_reducer() -> bool:
    """Whether C++, a communication hook of torch, or one of the user's, which has its bucket at hand, took it."""
    try:
        frame = sys._getframe(3)  # noqa: SLF001  whoever called `get_future`
    except ValueError:  # in a thread of autograd's own there is no Python below us
        return True
    return is_torchs(frame.f_code.co_filename) or any(
        isinstance(value, dist.GradBucket) for value in frame.f_locals.values()
    )
