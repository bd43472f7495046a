"""Whether a process has threads that may do something while others of it wait."""

import gc
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from types import FrameType

_HARNESS = str(Path(__file__).parent.parent)
_looking = threading.Lock()  # two that look at once could leave the collector off


def has_company(threads: Collection[int]) -> bool:
    """Whether threads of Python other than these (by identifier) are running, apart from the harness's own.

    Threads of C++ do not count: they run Python at most for a moment, and what they then do is seen like anything else.
    """
    frames = _frames()
    return any(not _is_harness(frame) for thread, frame in frames.items() if thread not in threads)


def _frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, also of threads that `threading` does not know.

    Some CPythons (3.11.7 is one) make that dict under a lock; if garbage is collected just then, they hang.
    """
    with _looking:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()  # noqa: SLF001  no public way
        finally:
            if collects:
                gc.enable()


def _is_harness(frame: FrameType) -> bool:
    """Whether a thread was started by us, to destroy a group or to look again."""
    outermost = frame
    while outermost.f_back is not None:
        outermost = outermost.f_back
    return outermost.f_code.co_filename.startswith(_HARNESS)
