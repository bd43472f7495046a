"""The board: one file that all ranks of a pool and the controller share, on which each rank posts what it enters.

Every rank writes to its own area only and reads all. It posts a notice first and looks at the others' afterwards; the
kernel lets writes to one file happen one after the other, so of two ranks that meet at least one sees the other's
notice. Nothing here waits for anybody, and what one rank wrote can be read after its death.
"""

import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum

# By their own names: a test that replaces `os.pread` and forgets must not break its rank.
from os import fstat, pread, pwrite

from pytest_ddp.observed.notice import Notice

SLOT = 1024
SLOTS = 1024
_AREA = SLOT * (1 + SLOTS)
_HEAD = struct.Struct("=QQQQ")
_LENGTH = struct.Struct("=QI")
TEXT = SLOT - _LENGTH.size


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
        version: changes whenever anything in the area does.
        posted: how many notices the rank has posted in its group.
        state: what it is doing.
        waits_in: the index of the notice of the operation that it waits in.
    """

    version: int = 0
    posted: int = 0
    state: State = State.RUNS
    waits_in: int = 0


@dataclass
class Area:
    """One rank's part of the board. Only that rank calls what writes.

    Attributes:
        fd: the board's file.
        rank: whose area it is.
    """

    fd: int
    rank: int
    _head: Head = field(default_factory=Head)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _inode: int = field(init=False)

    def __post_init__(self) -> None:
        self._inode = fstat(self.fd).st_ino

    def clear(self) -> None:
        """Forget every notice: a new group begins."""
        with self._lock:
            self._head = Head(self.head().version, 0)
            self._write(State.RUNS)

    def post(self, notice: Notice) -> int:
        """Post a notice; return its index. It is seen only when it is whole: the head moves last."""
        text = notice.encode()[:TEXT]
        with self._lock:
            index = self._head.posted
            self._put(_LENGTH.pack(index, len(text)) + text, self._at(index))
            self._head = Head(self._head.version, index + 1, self._head.state, self._head.waits_in)
            self._write(self._head.state, self._head.waits_in)
        return index

    def tell(self, state: State, waits_in: int = 0) -> None:
        """Say what the rank does from now on."""
        with self._lock:
            self._write(state, waits_in)

    def head(self) -> Head:
        """Return the head as it is now; that of a rank which runs if there is none."""
        data = self._get(_HEAD.size, self._start)
        if len(data) < _HEAD.size:
            return Head()
        version, posted, state, waits_in = _HEAD.unpack(data)
        return Head(version, posted, State(state) if state in set(State) else State.RUNS, waits_in)

    def read(self, index: int) -> Notice | None:
        """Return the notice of that index; None if it has been overwritten."""
        data = self._get(SLOT, self._at(index))
        if len(data) < _LENGTH.size:
            return None
        found, length = _LENGTH.unpack_from(data)
        return Notice.decode(data[_LENGTH.size : _LENGTH.size + length]) if found == index else None

    def _get(self, size: int, at: int) -> bytes:
        try:
            return pread(self.fd, size, at)
        except OSError:
            return b""

    @property
    def _start(self) -> int:
        return self.rank * _AREA

    def _at(self, index: int) -> int:
        return self._start + SLOT * (1 + index % SLOTS)

    def _write(self, state: State, waits_in: int = 0) -> None:
        self._head = Head(self._head.version + 1, self._head.posted, state, waits_in)
        self._put(_HEAD.pack(self._head.version, self._head.posted, state, waits_in), self._start)

    def _put(self, data: bytes, at: int) -> None:
        """Write, unless a test has closed the file (the number may be another file's by now) or forbids to write."""
        with suppress(OSError):
            if fstat(self.fd).st_ino == self._inode:
                pwrite(self.fd, data, at)


@dataclass
class Reader:
    """Reads the notices of one rank as they come.

    Attributes:
        area: whose.
        missed: whether notices were overwritten before they were read.
    """

    area: Area
    missed: bool = False
    _next: int = 0

    def new(self, posted: int) -> list[Notice]:
        """Return the notices before the index `posted` that were not returned earlier, oldest first."""
        if posted <= self._next:
            return []
        found = {index: self.area.read(index) for index in range(max(self._next, posted - SLOTS), posted)}
        oldest = self.area.head().posted - SLOTS + 1  # what is older may have been written over while we read
        whole = [notice for index, notice in found.items() if notice is not None and index >= oldest]
        self.missed |= len(whole) < posted - self._next
        self._next = posted
        return whole
