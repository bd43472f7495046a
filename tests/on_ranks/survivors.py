"""Processes that should have ended."""

from collections.abc import Iterable

import psutil

_SECONDS = 300  # a busy machine takes a while; only a survivor takes all of them


def survivors(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Wait for processes to end; kill and return those that do not."""
    _, alive = psutil.wait_procs(processes, timeout=_SECONDS)
    for process in alive:
        process.kill()
    return list(alive)
