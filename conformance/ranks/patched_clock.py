"""What a clock and a process's number would be in another run: for code that is to depend on neither."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

_SECONDS = 10**6  # eleven days and a half: no date is the same
_PROCESSES = 1000


@contextmanager
def another_run() -> Iterator[None]:
    """Inside, `time.time`, `time.time_ns` and `os.getpid` give what another process would get, days later.

    Nothing that waits looks at these: waiting goes by `time.monotonic`, which stays.
    """
    moved = ((time, "time", _SECONDS), (time, "time_ns", _SECONDS * 10**9), (os, "getpid", _PROCESSES))
    with ExitStack() as patches:
        for module, name, by in moved:
            patches.enter_context(mock.patch.object(module, name, _moved(getattr(module, name), by)))
        yield


def _moved(read: Callable[[], Any], by: int) -> Callable[[], Any]:
    return lambda: read() + by
