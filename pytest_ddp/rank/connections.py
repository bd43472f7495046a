"""The connections of this rank's process groups; breaking them makes ranks that wait for this one fail at once.

Gloo cannot abort a collective: a rank that waits is freed only when a connection to another rank breaks. To destroy
the group would break them only when nothing refers to it any more, and the fixtures of a test may.
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
    """Record the sockets that the body opens as connections of a process group."""
    before = _sockets()
    yield
    _connections.update(_sockets().items() - before.items())


def disconnect() -> None:
    """Break the connections of every process group of this rank."""
    open_now = _sockets()
    for fd, inode in _connections.items():
        if open_now.get(fd) == inode:
            with suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
                connection.getpeername()  # raises for a listening socket, which later groups may need
                connection.shutdown(socket.SHUT_RDWR)
    _connections.clear()


def forget_connections() -> None:
    """Forget the connections of groups that this rank has left."""
    _connections.clear()


def _sockets() -> dict[int, int]:
    """Return the descriptors of this process's sockets with their inodes: a descriptor may be used again."""
    found = {}
    for name in os.listdir(_FDS):  # noqa: PTH208  plain names
        with suppress(OSError):
            status = os.stat(int(name))  # noqa: PTH116  a descriptor
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = status.st_ino
    return found
