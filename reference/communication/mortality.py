"""A process that dies with its parent, by whatever way the parent goes: a rank without its launcher trains for nobody.

Source: prctl(2), PR_SET_PDEATHSIG.
"""

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_WATCH_SECONDS = 0.5


def die_with(parent: int) -> None:
    """End this process when `parent`, the process that started it, is gone; SIGKILL needs no cooperation."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it went before we asked
            os._exit(1)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)
