"""What a rank prints: a file that it appends to, of which the beginning and the end are kept."""

import ctypes
import errno
import os
import sys
from dataclasses import dataclass
from typing import IO

OUTPUT_LIMIT = 2**16  # bytes that a report shows
DISK_LIMIT = 2**26
_HALF = OUTPUT_LIMIT // 2
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # fallocate(2)


@dataclass
class OutputFile:
    """An output that is bounded in reports and on disk, although it has no end."""

    file: IO[bytes]
    _trimmed_at: int = 0
    _cut: int = 0

    def clear(self) -> None:
        """Forget what was printed."""
        self._trimmed_at = self._cut = 0
        if self._size:  # most tests print nothing
            os.ftruncate(self.file.fileno(), 0)

    def trim(self) -> None:
        """Give the middle of a very long output back to the disk.

        A hole is made in it, so nothing is lost of what the rank prints meanwhile. Where files have no holes the file
        is cut: what is printed between the look at it and the cut goes, uncounted.
        """
        size = self._size
        # A rank may truncate the file too.
        self._trimmed_at = min(self._trimmed_at, size)
        if size - self._trimmed_at <= DISK_LIMIT:
            return
        self._trimmed_at = size
        if not _make_hole(self.file.fileno(), _HALF, size - OUTPUT_LIMIT):
            self._cut_out_middle(size)

    def _cut_out_middle(self, size: int) -> None:
        end = os.pread(self.file.fileno(), _HALF, size - _HALF)
        os.ftruncate(self.file.fileno(), _HALF)
        os.write(self.file.fileno(), end)
        self._trimmed_at = OUTPUT_LIMIT
        self._cut += size - self._trimmed_at

    @property
    def text(self) -> str:
        """All of it; of a very long output the beginning and the end, with the number of bytes between."""
        size, file = self._size, self.file.fileno()
        if size <= OUTPUT_LIMIT and not self._cut:
            return os.pread(file, size, 0).decode(errors="backslashreplace")
        first, last = os.pread(file, _HALF, 0), os.pread(file, _HALF, size - _HALF)
        between = f"\n... {size + self._cut - OUTPUT_LIMIT} bytes left out ...\n".encode()
        return (first + between + last).decode(errors="backslashreplace")

    @property
    def _size(self) -> int:
        return os.fstat(self.file.fileno()).st_size


def _make_hole(file: int, start: int, length: int) -> bool:
    """Give back what a file holds in `length` bytes from `start`, its size unchanged; False where that is not possible.

    See fallocate(2): Linux, and most of its file systems.
    """
    if sys.platform != "linux":
        return False
    libc, place = ctypes.CDLL(None, use_errno=True), (ctypes.c_int64(start), ctypes.c_int64(length))
    while libc.fallocate(file, _KEEP_SIZE | _PUNCH_HOLE, *place) != 0:
        if ctypes.get_errno() != errno.EINTR:
            return False
    return True
