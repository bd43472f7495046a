"""What is left of processes that are to end."""

from collections.abc import Iterable

import psutil

_SECONDS = 300  # on a busy machine dying takes a while; only a survivor takes them all


def survivors(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Wait for processes to end; kill those that do not, so that a failing test leaves none behind, and return them."""
    _, alive = psutil.wait_procs(processes, timeout=_SECONDS)
    for process in alive:
        process.kill()
    return list(alive)
