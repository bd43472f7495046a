"""The collectives of data-parallel training that carry gradients, apart from flags and buffers."""

from collections.abc import Iterator
from contextlib import contextmanager

from pytest_ddp.operations.fingerprint import Fingerprint
from pytest_ddp.rank.collective_hooks import watch_collectives


@contextmanager
def recorded() -> Iterator[list[Fingerprint]]:
    """The collectives that carry gradients: all-reduces of floating-point numbers."""
    seen: list[Fingerprint] = []
    with watch_collectives(lambda c: seen.append(c) if (c.op, c.dtype) == ("all_reduce", "float64") else None):
        yield seen
