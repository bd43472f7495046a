"""The terminal of the run: the controller knows its name, a rank's debugger borrows it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def without_capture(config: pytest.Config) -> Iterator[None]:
    """Let this process have its own standard streams, while a test runs."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    if capture is None:
        yield
        return
    capture.suspend_global_capture(in_=True)
    try:
        yield
    finally:
        capture.resume_global_capture()


def terminal_name() -> str | None:
    """Return the name of the terminal on standard input, such as /dev/pts/3; None if it is not one."""
    try:
        return os.ttyname(0)
    except OSError:
        return None
