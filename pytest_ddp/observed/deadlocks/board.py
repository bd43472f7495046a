"""The board: one file that all ranks of a pool and the controller share, on which each rank posts what it enters.

Every rank writes to its own area only and reads all. It posts a notice first and looks at the others' afterwards; the
kernel lets writes to one file happen one after the other, so of two ranks that meet at least one sees the other's
notice. Nothing here waits for anybody, and what one rank wrote can be read after its death.
"""

import mmap
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b

# By their own names: a test that replaces `os.pread` and forgets must not break its rank.
from os import fstat, ftruncate, pread, pwrite

SLOT = 1024
SLOTS = 1023
AREA = SLOT * (1 + SLOTS)
_HEAD = struct.Struct("=QQQQ")
_SLOT = struct.Struct("=QQI")
_END = struct.Struct("=Q")
TEXT = SLOT - _SLOT.size - _END.size


class State(IntEnum):
    """What a rank is doing, as far as others must know.

    Attributes:
        RUNS: it computes, or waits for something that is none of its group's doing.
        WAITS: it waits in an operation and does nothing else.
        MAY_GO_ON: it waits or has answered, but other threads of it may still communicate, or the wait ends by itself.
    """

    RUNS = 0
    WAITS = 1
    MAY_GO_ON = 2


@dataclass(frozen=True)
class Head:
    """The first words of an area.

    Attributes:
        version: changes whenever the rest does.
        state: what the rank is doing.
        waits_in: the index of the notice of the operation that it waits in.
    """

    version: int = 0
    state: State = State.RUNS
    waits_in: int = 0


def key_of(group: str) -> int:
    """Return the number that marks what is posted in the default group of that name: old notices never pass for new."""
    return int.from_bytes(blake2b(group.encode(), digest_size=8).digest())


def make_room(fd: int, ranks: int) -> None:
    """Let the board have an area for so many ranks."""
    if fstat(fd).st_size < ranks * AREA:
        ftruncate(fd, ranks * AREA)


class Post:
    """A rank's own area, to write to, in a default group of that key.

    Attributes:
        posted: how many notices the rank has posted in the group.
    """

    def __init__(self, fd: int, rank: int, key: int) -> None:
        self.posted = 0
        self._fd, self._key, self._start = fd, key, rank * AREA
        self._inode = fstat(fd).st_ino
        self._head = mmap.mmap(fd, mmap.ALLOCATIONGRANULARITY, offset=self._start)
        self._version: int = _HEAD.unpack_from(self._head)[0]
        self.tell(State.RUNS)

    def post(self, text: bytes) -> bytes:
        """Post a notice; return all that was written, which is the same for ranks that post the same."""
        index = self.posted
        data = _SLOT.pack(self._key, index, len(text)) + text + _END.pack(index)
        with suppress(OSError):  # a test may have closed the file, and its number be another file's; or forbid to write
            if fstat(self._fd).st_ino == self._inode and len(text) <= TEXT:
                pwrite(self._fd, data, self._start + _at(index))
        self.posted += 1
        return data

    def tell(self, state: State, waits_in: int = 0) -> None:
        """Say what the rank does from now on."""
        self._version += 1
        _HEAD.pack_into(self._head, 0, self._version, self._key, state, waits_in)


@dataclass
class Area:
    """A rank's area, to read.

    Attributes:
        fd: the board's file.
        rank: whose area it is.
        key: of the default group.
        next: the index of the first notice that `new` has not returned.
        missed: whether notices were written over before they were read.
    """

    fd: int
    rank: int
    key: int
    next: int = 0
    missed: bool = False

    def head(self) -> Head:
        """Return the head as it is now; that of a rank which runs if the rank is not in the group."""
        data = self._get(_HEAD.size, 0)
        if len(data) < _HEAD.size:
            return Head()
        version, key, state, waits_in = _HEAD.unpack(data)
        return Head(version, State(state), waits_in) if key == self.key and state in set(State) else Head(version)

    def new(self) -> Iterator[tuple[int, bytes]]:
        """Yield the notices that were not yielded earlier, oldest first, with their indices."""
        for _ in range(2 * SLOTS):  # a hostile rank could go on for ever
            found = self._read(self.next)
            if found is None:
                return
            index, _ = found
            if index == self.next:
                self.next += 1
                yield found
            else:
                self.missed, self.next = True, index - SLOTS + 1

    def pass_over(self, data: bytes) -> bool:
        """Skip the next notice if what was written with it is `data`; return whether it was."""
        if self._get(len(data), _at(self.next)) != data:
            return False
        self.next += 1
        return True

    def _read(self, index: int) -> tuple[int, bytes] | None:
        """Return the notice in an index's place, and its own index, if it is the one of that index or a later one."""
        data = self._get(SLOT, _at(index))
        if len(data) < _SLOT.size + _END.size:
            return None
        key, found, length = _SLOT.unpack_from(data)
        end = _SLOT.size + length
        if key != self.key or found < index or end + _END.size > len(data) or _END.unpack_from(data, end) != (found,):
            return None  # nothing there yet, or being written
        return found, data[_SLOT.size : end]

    def _get(self, size: int, at: int) -> bytes:
        try:
            return pread(self.fd, size, self.rank * AREA + at)
        except OSError:
            return b""


def _at(index: int) -> int:
    return SLOT * (1 + index % SLOTS)
