"""Processes that end with their parent, however it ends."""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Collection
from pathlib import Path

from pytest_ddp.protocol.flight_recorder import own_thread

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.5


def die_with(parent: int) -> None:
    """End this process when `parent`, the process that started it, has ended."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)
    else:
        threading.Thread(target=_poll, args=(parent,), daemon=True).start()


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, to be able to kill them (Linux only)."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_children(except_for: Collection[int]) -> None:
    """Kill the children of this process, except for some (Linux only)."""
    me = os.getpid()
    for pid in map(int, Path(f"/proc/{me}/task/{me}/children").read_text(encoding="ascii").split()):
        if pid not in except_for:
            os.kill(pid, signal.SIGKILL)


def kill_descendants() -> None:
    """Kill all processes below this one, and those that they start meanwhile."""
    import psutil  # noqa: PLC0415  needed once, at the end

    while children := psutil.Process().children(recursive=True):
        for child in children:
            child.kill()
        psutil.wait_procs(children)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def _poll(parent: int) -> None:
    pause = threading.Event()
    with own_thread():
        while os.getppid() == parent:
            pause.wait(_POLL_SECONDS)
    os._exit(1)
