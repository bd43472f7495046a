"""Makes the waits of torch's own DDP visible.

Its reducer takes the future of each bucket and waits for all of them in C++, in a callback at the end of backward. Who
waits there is not seen, and a rank that waits in vain would look as if it computed. So for every future that the
reducer takes, a callback of ours is queued, which comes before the reducer's own and waits for the same future.
"""

import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.autograd import Variable

from pytest_ddp.observed.location import is_torchs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_ddp.observed.entry import Entry
    from pytest_ddp.observed.record import Record


_NO_TASK = -1


def foresee_wait(record: "Record", future: "torch.futures.Future[Any]", entries: "Sequence[Entry]") -> None:
    """Wait for the future at the end of backward, if it is the reducer that takes it from our caller."""
    in_backward = torch._C._current_graph_task_id() != _NO_TASK  # noqa: SLF001  of this thread; no public way
    if in_backward and _taken_by_reducer():
        Variable._execution_engine.queue_callback(partial(_wait, record, future, entries))  # noqa: SLF001  torch's way


def _wait(record: "Record", future: "torch.futures.Future[Any]", entries: "Sequence[Entry]") -> None:
    with suppress(Exception), record.waiting(entries):  # the reducer is about to meet the same error, and raises it
        future.wait()


def _taken_by_reducer() -> bool:
    """Whether C++, a communication hook of torch, or one of the user's, which has its bucket at hand, took it."""
    try:
        frame = sys._getframe(3)  # noqa: SLF001  whoever called `get_future`
    except ValueError:  # in a thread of autograd's own there is no Python below us
        return True
    return is_torchs(frame.f_code.co_filename) or any(
        isinstance(value, dist.GradBucket) for value in frame.f_locals.values()
    )
