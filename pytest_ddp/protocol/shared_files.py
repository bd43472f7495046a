"""The files that a rank shares with the controller; none of them has a name on disk."""

import os
import socket
import tempfile
from dataclasses import dataclass
from typing import IO


@dataclass(frozen=True)
class RankFiles:
    """The file descriptors that a rank shares with the controller."""

    channel: int
    output: int
    stacks: int
    recorder: int


@dataclass
class SharedFiles:
    """The controller's ends of what it shares with one rank; nothing of it has a name on disk."""

    rank: int
    channel: socket.socket
    rank_channel: socket.socket
    output: IO[bytes]
    stacks: IO[bytes]
    recorder: IO[bytes]

    @classmethod
    def make(cls, rank: int, recorder: IO[bytes]) -> "SharedFiles":
        """Open a socket pair and two anonymous files, beside the flight recorder that all ranks of the pool share.

        A full disk must not take the stacks away.
        """
        ours, theirs = socket.socketpair()
        return cls(rank, ours, theirs, _append_only(_disk_file()), _append_only(memory_file()), recorder)

    @property
    def fds(self) -> tuple[int, ...]:
        """The rank's file descriptors, in the order of `RankFiles`."""
        return tuple(part.fileno() for part in (self.rank_channel, self.output, self.stacks, self.recorder))

    def close(self) -> None:
        """Close everything that is this rank's alone."""
        for part in (self.channel, self.rank_channel, self.output, self.stacks):
            part.close()


def _disk_file() -> IO[bytes]:
    return tempfile.TemporaryFile(buffering=0)


def memory_file() -> IO[bytes]:
    """Open an anonymous file in memory; on disk where there is no other way."""
    if not hasattr(os, "memfd_create"):
        return _disk_file()
    return os.fdopen(os.memfd_create("pytest-ddp"), "w+b", buffering=0)


def _append_only(file: IO[bytes]) -> IO[bytes]:
    """Make every writer append, also after the controller has truncated the file."""
    import fcntl  # noqa: PLC0415  Windows, where no rank runs, has none; the plugin is imported there too

    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
    return file
