"""The files that a rank shares with the controller, and its output, which is limited in size.

None of them has a name on disk.
"""

import ctypes
import errno
import os
import socket
import sys
import tempfile
from dataclasses import dataclass
from typing import IO

if sys.platform != "win32":
    import fcntl

OUTPUT_LIMIT = 2**16  # bytes of output in a report
DISK_LIMIT = 2**26
_HALF = OUTPUT_LIMIT // 2
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # fallocate(2)


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
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
    return file


@dataclass
class OutputFile:
    """The output of a rank, of any length, of which reports and the disk hold a limited part."""

    file: IO[bytes]
    _trimmed_at: int = 0
    _cut: int = 0

    def clear(self) -> None:
        """Delete the output."""
        self._trimmed_at = self._cut = 0
        if self._size:  # most tests print nothing
            os.ftruncate(self.file.fileno(), 0)

    def trim(self) -> None:
        """Free the disk space of the middle of a very long output.

        If the file can have a hole, output that the rank prints during this call is kept. Otherwise the file is cut,
        and such output is lost and not counted.
        """
        size = self._size
        self._trimmed_at = min(self._trimmed_at, size)  # the rank may have truncated the file
        if size - self._trimmed_at <= DISK_LIMIT:
            return
        self._trimmed_at = size
        if not free_disk(self.file.fileno(), _HALF, size - OUTPUT_LIMIT):
            self._cut_out_middle(size)

    def _cut_out_middle(self, size: int) -> None:
        end = os.pread(self.file.fileno(), _HALF, size - _HALF)
        os.ftruncate(self.file.fileno(), _HALF)
        os.write(self.file.fileno(), end)
        self._trimmed_at = OUTPUT_LIMIT
        self._cut += size - OUTPUT_LIMIT

    @property
    def text(self) -> str:
        """The output; if it is very long, its beginning and end with the number of bytes between."""
        size, file = self._size, self.file.fileno()
        if size <= OUTPUT_LIMIT and not self._cut:
            return os.pread(file, size, 0).decode(errors="backslashreplace")
        first, last = os.pread(file, _HALF, 0), os.pread(file, _HALF, size - _HALF)
        between = f"\n... {size + self._cut - OUTPUT_LIMIT} bytes left out ...\n".encode()
        return (first + between + last).decode(errors="backslashreplace")

    @property
    def _size(self) -> int:
        return os.fstat(self.file.fileno()).st_size


def free_disk(file: int, start: int, length: int) -> bool:
    """Free the disk space of `length` bytes from `start`; return False if the system or the disk cannot do so.

    The size of the file stays. See fallocate(2).
    """
    if sys.platform != "linux":
        return False
    libc, place = ctypes.CDLL(None, use_errno=True), (ctypes.c_int64(start), ctypes.c_int64(length))
    while libc.fallocate(file, _KEEP_SIZE | _PUNCH_HOLE, *place) != 0:
        if ctypes.get_errno() != errno.EINTR:
            return False
    return True
