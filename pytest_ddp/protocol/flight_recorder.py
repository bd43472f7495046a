"""The flight recorder: one file in memory, in which each rank of a pool records the operations that it enters.

Every rank writes to its own area only; the controller and the other ranks read it, also after the rank has died. A
rank records an operation first and looks at the others' areas afterwards, with a system call in between: of two ranks
that enter operations with the same key, at least one sees the other's.
"""

import _thread
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from hashlib import blake2b

# By their own names: a test that replaces `os.pread` and forgets must not break its rank.
from os import fstat, ftruncate, pread
from zlib import crc32

SLOT = 1024
SLOTS = 1023
AREA = SLOT * (1 + SLOTS)
_HEAD = struct.Struct("=6Q")
_SLOT = struct.Struct("=QQI")
_CHECKSUM = struct.Struct("=I")
RECORD = SLOT - _SLOT.size - _CHECKSUM.size
NOTE_AT = _HEAD.size
_NOTE = SLOT - NOTE_AT
LATEST = 64


class State(IntEnum):
    """What a rank is doing, as far as others must know.

    Attributes:
        RUNS: it computes, waits for something else than an operation, or has another thread that may go on.
        WAITS: it waits in an operation, without a timeout of the test's own, and does nothing else.
        IDLE: it has answered, and waits for the controller.
    """

    RUNS = 0
    WAITS = 1
    IDLE = 2


@dataclass(frozen=True)
class Head:
    """The first words of an area.

    Attributes:
        version: changes whenever the state does.
        key: of the rank's default group, see `key_of`.
        state: what the rank is doing.
        waits_in: the index of the operation that it waits in.
        count: how many operations it has recorded in this default group.
        first: how many of them it had recorded before its latest run.
    """

    version: int = 0
    key: int = 0
    state: State = State.RUNS
    waits_in: int = 0
    count: int = 0
    first: int = 0

    @classmethod
    def unpacked(cls, data: bytes) -> "Head":
        """Return the head with which these bytes of an area begin."""
        if len(data) < _HEAD.size:
            return cls()
        version, key, state, *rest = _HEAD.unpack_from(data)
        return cls(version, key, State(state) if state in set(State) else State.RUNS, *rest)


def key_of(group: str) -> int:
    """Return the number that marks the records of the default group of that name, so that older ones are ignored."""
    return int.from_bytes(blake2b(group.encode(), digest_size=8).digest())


def make_room(fd: int, ranks: int) -> None:
    """Give the file an area for each of so many ranks."""
    if fstat(fd).st_size < ranks * AREA:
        ftruncate(fd, ranks * AREA)


_own_threads: set[int] = set()


@contextmanager
def own_thread() -> Iterator[None]:
    """Let this thread be one of the harness's, which never communicates."""
    _own_threads.add(_thread.get_ident())
    try:
        yield
    finally:
        _own_threads.discard(_thread.get_ident())


class Recorder:
    """A rank's own area, to write to.

    `count` operations are recorded in this default group. A wait with a timeout below `patience` ends by itself, as
    the test may want.
    """

    def __init__(self, fd: int, rank: int) -> None:
        self.rank, self._fd = rank, fd
        self._memory: mmap.mmap | bytearray = mmap.mmap(fd, AREA, offset=rank * AREA)
        self._version: int = _HEAD.unpack_from(self._memory)[0]
        os.register_at_fork(after_in_child=self._detach)
        self.note("")
        self.begin_group(0, timedelta(0))

    def begin_group(self, key: int, patience: timedelta) -> None:
        """Start anew for a default group with this key."""
        self._key, self.count, self._first, self.patience = key, 0, 0, patience
        self._tell(State.RUNS)

    def begin_run(self) -> None:
        """Count what follows as a new run."""
        self._first = self.count
        self._tell(State.RUNS)

    def record(self, record: bytes) -> bytes:
        """Record an operation; return all that was written, which is the same for ranks that record the same."""
        index, record = self.count, record[:RECORD]
        data = _with_checksum(_SLOT.pack(self._key, index, len(record)) + record)
        at = _at(index)
        self._memory[at : at + len(data)] = data
        self.count += 1
        self._tell(State.RUNS)
        return data

    def mark_waiting(self, index: int, timeout: timedelta) -> None:
        """Say that the rank waits in the operation of that index, unless a timeout or another thread may end that."""
        ends = timeout < self.patience or has_other_threads()
        self._tell(State.RUNS if ends else State.WAITS, index)

    def mark_idle(self) -> None:
        """Say that this rank waits for the controller, unless another thread may go on."""
        self._tell(State.RUNS if has_other_threads() else State.IDLE)

    def mark_running(self) -> None:
        """Say that this rank goes on."""
        self._tell(State.RUNS)

    def reader(self, rank: int) -> "Reader":
        """Return a reader of a rank's records in this default group."""
        return Reader(self._fd, rank, self._key)

    def note(self, text: str) -> None:
        """Write down why the rank is about to leave."""
        self._memory[NOTE_AT:SLOT] = text.encode()[:_NOTE].ljust(_NOTE, b"\0")

    def _tell(self, state: State, waits_in: int = 0) -> None:
        self._version += 1
        _HEAD.pack_into(self._memory, 0, self._version, self._key, state, waits_in, self.count, self._first)

    def _detach(self) -> None:
        """Record no more in the file: a forked child is no rank."""
        self._memory = bytearray(AREA)


def has_other_threads() -> bool:
    """Whether there are threads of Python beside the main one and the harness's.

    Threads of C++ do not count: they run Python at most for a moment, and what they then enter is recorded.
    """
    return _thread._count() > len(_own_threads)  # noqa: SLF001  no public way counts threads that `threading` does not know


@dataclass
class Reader:
    """A rank's area, to read.

    Attributes:
        key: of the default group whose records are read, see `key_of`.
        next: the index of the first record that `new` has not returned.
        missed: whether records were overwritten before they were read.
    """

    fd: int
    rank: int
    key: int = 0
    next: int = 0
    missed: bool = False

    def head(self) -> Head:
        """Return the head as it is now."""
        return Head.unpacked(self._get(_HEAD.size, 0))

    @property
    def is_there(self) -> bool:
        """Whether the rank writes to this file, and in this default group: one on another node does not."""
        return self.head().key == self.key

    def latest(self) -> tuple[bytes, ...]:
        """Return the last records of the latest run, oldest first."""
        head = self.head()
        self.key = head.key
        found = map(self._read, range(max(head.first, head.count - LATEST), head.count))
        return tuple(record for _, record in filter(None, found))

    def new(self) -> Iterator[tuple[int, bytes]]:
        """Yield the records that were not yielded earlier, oldest first, with their indices."""
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
        """Skip the next record if what was written with it is `data`; return whether it was."""
        if self._get(len(data), _at(self.next)) != data:
            return False
        self.next += 1
        return True

    @property
    def exit_note(self) -> str:
        """Why the rank left, if it could still say so."""
        return self._get(_NOTE, NOTE_AT).rstrip(b"\0").decode(errors="replace")

    def _read(self, index: int) -> tuple[int, bytes] | None:
        """Return the record in an index's place, and its own index, if it is the one of that index or a later one."""
        data = self._get(SLOT, _at(index))
        if len(data) < _SLOT.size + _CHECKSUM.size:
            return None
        key, found, length = _SLOT.unpack_from(data)
        end = _SLOT.size + length
        if key != self.key or found < index or _with_checksum(data[:end]) != data[: end + _CHECKSUM.size]:
            return None  # nothing there yet, or being written
        return found, data[_SLOT.size : end]

    def _get(self, size: int, at: int) -> bytes:
        try:
            return pread(self.fd, size, self.rank * AREA + at)
        except OSError:
            return b""


def _with_checksum(data: bytes) -> bytes:
    """Return the bytes of a slot with their checksum.

    A reader may see a slot that is half written, and processors do not copy its bytes from the first to the last.
    """
    return data + _CHECKSUM.pack(crc32(data))


def _at(index: int) -> int:
    return SLOT * (1 + index % SLOTS)
