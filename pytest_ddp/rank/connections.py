"""Breaks the connections of this rank's process groups, so that ranks which wait for it fail at once.

Gloo has no way to abort a collective: a rank that waits is freed only when a connection to a peer breaks. Destroying
the group would break them, but only once nothing refers to it any more, and a test's fixtures may.
"""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_FDS = "/dev/fd"
_connections: dict[int, int] = {}


@contextmanager
def connections_of_group() -> Iterator[None]:
    """Remember the connections that are made meanwhile as those of a process group."""
    before = _sockets()
    yield
    _connections.update(_sockets().items() - before.items())


def disconnect() -> None:
    """Break every connection of every process group of this rank."""
    still = _sockets()
    for fd, inode in _connections.items():
        if still.get(fd) == inode:
            with suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
                connection.getpeername()  # fails for what listens: later groups may still need that
                connection.shutdown(socket.SHUT_RDWR)
    _connections.clear()


def forget_connections() -> None:
    """Forget the connections of groups that this rank has left."""
    _connections.clear()


def _sockets() -> dict[int, int]:
    """Return this process's sockets, each with what tells it from a later one of the same number."""
    found = {}
    for name in os.listdir(_FDS):  # noqa: PTH208  plain names
        with suppress(OSError):
            status = os.stat(int(name))  # noqa: PTH116  a descriptor
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = status.st_ino
    return found
