"""A full disk, for this process only. Scripts hold the source of this function."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_disk() -> Iterator[None]:
    """Let every write beyond the first 512 bytes of a file raise `OSError`; Python ignores the signal SIGXFSZ."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, limits[1]))  # bytes: less than any state
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
