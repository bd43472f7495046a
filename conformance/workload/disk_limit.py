"""A disk that is full, as far as this process is concerned; scripts that show a failure hold the source."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_disk() -> Iterator[None]:
    """Let every write beyond the first bytes of a file fail, by `OSError` in Python.

    Python ignores the signal that the system sends besides.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, limits[1]))  # bytes: less than any state
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
