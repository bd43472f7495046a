"""The files that a rank shares with the controller; none of them has a name on disk."""

import os
import socket
import tempfile
from dataclasses import dataclass
from typing import IO


@dataclass(frozen=True)
class RankFiles:
    """A rank's file descriptors.

    Attributes:
        channel: a socket for messages.
        output: the file that it prints to.
        stacks: the file for Python stacks, which the controller requests or a fatal signal causes.
        recorder: the flight recorder, which all ranks of a pool share.
    """

    channel: int
    output: int
    stacks: int
    recorder: int


@dataclass
class SharedFiles:
    """The controller's side of the same files; `rank_channel` is the rank's end of the channel."""

    rank: int
    channel: socket.socket
    rank_channel: socket.socket
    output: IO[bytes]
    stacks: IO[bytes]
    recorder: IO[bytes]

    @classmethod
    def make(cls, rank: int, recorder: IO[bytes]) -> "SharedFiles":
        """Open the files of a new rank, besides the flight recorder. Stacks are in memory: a disk may be full."""
        channel, rank_channel = socket.socketpair()
        output = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  until `close`
        return cls(rank, channel, rank_channel, _append_only(output), _append_only(memory_file()), recorder)

    @property
    def fds(self) -> tuple[int, ...]:
        """The rank's file descriptors, in the order of `RankFiles`."""
        files = (self.rank_channel, self.output, self.stacks, self.recorder)
        return tuple(file.fileno() for file in files)

    def close(self) -> None:
        """Close everything but the flight recorder."""
        for file in (self.channel, self.rank_channel, self.output, self.stacks):
            file.close()


def memory_file() -> IO[bytes]:
    """Open an anonymous file in memory; on disk if the system has none in memory."""
    if not hasattr(os, "memfd_create"):
        return tempfile.TemporaryFile(buffering=0)
    return os.fdopen(os.memfd_create("pytest-ddp"), "w+b", buffering=0)


def _append_only(file: IO[bytes]) -> IO[bytes]:
    """Make every process append, so that it writes to the right place after the controller has truncated the file."""
    import fcntl  # noqa: PLC0415  Windows, where the plugin is imported too, has none

    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
    return file
