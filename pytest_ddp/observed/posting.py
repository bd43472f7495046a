"""A rank lets the others know what it enters and when it waits, and looks whether they do the same."""

import sys
import threading
from collections.abc import Iterable, Sequence
from datetime import timedelta
from math import prod
from pathlib import Path
from threading import get_ident
from types import FrameType

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from pytest_ddp.errors import CollectiveMismatch
from pytest_ddp.observed.board import SLOTS, Area, Reader, State
from pytest_ddp.observed.entry import Entry
from pytest_ddp.observed.matching import mismatch
from pytest_ddp.observed.notice import ANYONE, RECV, Meeting, Notice, shapes_text, source_text
from pytest_ddp.observed.parts import given, taken
from pytest_ddp.observed.timeouts import timeout_of
from pytest_ddp.observed.watch import Watch

_HARNESS = str(Path(__file__).parent.parent)


class Posting(Watch):
    """Posts every operation of this rank, and raises CollectiveMismatch for one that does not fit another rank's.

    Attributes:
        area: this rank's part of the board.
        patience: the shortest timeout that nobody has asked for. A wait with a shorter one ends by itself, and may be
            meant to: it is no deadlock.
    """

    def __init__(self, area: Area, patience: timedelta) -> None:
        self.area = area
        self.patience = patience
        self._others: dict[int, Reader] = {}
        self._theirs: dict[tuple[int, Meeting], Notice] = {}
        self._posted: dict[int, int] = {}
        self._loose: set[tuple[str, int]] = set()
        self._waits: dict[int, Sequence[Entry]] = {}
        self._lock = threading.RLock()

    @classmethod
    def begin(cls, board: int, rank: int, group_timeout: float) -> "Posting":
        """Begin a rank's part of the board (a file descriptor) anew, for a group with a timeout of so many seconds."""
        area = Area(board, rank)
        area.clear()
        return cls(area, min(timedelta(seconds=group_timeout), default_pg_timeout))

    def entering(self, entry: Entry) -> None:
        """Post an operation; raise CollectiveMismatch if it does not fit what another rank has posted."""
        wrong = self._post(entry)
        if wrong:
            raise CollectiveMismatch(wrong)

    def blocked(self, entries: Sequence[Entry], timeout: timedelta | None) -> None:
        """Say that a thread waits; a rank of which another thread may go on counts as one that runs."""
        for_ever = all(timeout_of(entry.group, timeout) >= self.patience for entry in entries)
        with self._lock:
            self._waits[get_ident()] = entries if for_ever else ()
            self.area.tell(*self._state())

    def unblocked(self, entries: Sequence[Entry]) -> None:  # noqa: ARG002  a thread waits in one place at a time
        """Say that it waits no more."""
        with self._lock:
            if self._waits.pop(get_ident(), None) is not None:
                self.area.tell(*self._state())

    def answered(self) -> None:
        """Say that this rank's part of the run is over, unless threads of it go on."""
        with self._lock:
            self.area.tell(State.MAY_GO_ON if company() else State.RUNS)

    def _post(self, entry: Entry) -> str | None:
        """Post an operation first, then look at what the others have posted; return what does not fit."""
        with self._lock:
            if self._waits.pop(get_ident(), None) is not None:  # it went on without having waited
                self.area.tell(*self._state())
            notice = self._notice(entry)
            self._posted[entry.number] = self.area.post(notice)
            if len(self._posted) > SLOTS:
                del self._posted[next(iter(self._posted))]
            for rank in notice.others:
                self._read(rank)
            found = (self._theirs.pop((rank, notice.meeting), None) for rank in notice.others)
            wrong = (mismatch(notice, theirs) for theirs in found if theirs is not None)
            return next(filter(None, wrong), None)

    def _state(self) -> tuple[State, int]:
        if not self._waits:
            return State.RUNS, 0
        entries = next(iter(self._waits.values()))
        last = self._posted.get(entries[-1].number) if entries else None
        if last is None or len(self._waits) > 1 or not _is_one_line(entries) or company():
            return State.MAY_GO_ON, last or 0
        return State.WAITS, last

    def _read(self, rank: int) -> None:
        """Take note of what another rank has posted since we last looked, as far as we may meet it there."""
        if rank not in self._others:
            self._others[rank] = Reader(Area(self.area.fd, rank))
        reader = self._others[rank]
        for theirs in reader.new(reader.area.head().posted):
            if self.area.rank in theirs.others:
                self._theirs[rank, theirs.meeting] = theirs

    def _notice(self, entry: Entry) -> Notice:
        peer = ANYONE if entry.op == RECV and entry.peer is None else entry.peer
        if peer == ANYONE:
            self._loose.add((entry.group, entry.tag))
        return Notice(
            op=entry.op,
            group=entry.group,
            ranks=entry.ranks,
            number=entry.sequence,
            rank=self.area.rank,
            peer=peer,
            tag=entry.tag,
            root=entry.root,
            reduction=entry.reduce_op,
            dtype=entry.dtype,
            shapes=shapes_text(entry.shapes),
            elements=sum(map(prod, entry.shapes)),
            given=given(entry),
            taken=taken(entry),
            source=source_text(entry.line),
            asynchronous=entry.asynchronous,
            loose=entry.op == RECV and (entry.group, entry.tag) in self._loose,
            default=entry.group == getattr(dist.group.WORLD, "group_name", None),
        )


def _is_one_line(entries: Iterable[Entry]) -> bool:
    """Whether who has come to the last of these operations has come to all: they are collectives of one group."""
    found = list(entries)
    return len(found) == 1 or (len({entry.group for entry in found}) == 1 and not any(e.point_to_point for e in found))


def company() -> bool:
    """Whether this process has threads of Python besides this one that may do something."""
    frames = sys._current_frames()  # noqa: SLF001  also of threads that `threading` does not know
    return any(not _is_harness(frame) for thread, frame in frames.items() if thread != get_ident())


def _is_harness(frame: FrameType) -> bool:
    """Whether a thread was started by us, to destroy a group."""
    outermost = frame
    while outermost.f_back is not None:
        outermost = outermost.f_back
    return outermost.f_code.co_filename.startswith(_HARNESS)
