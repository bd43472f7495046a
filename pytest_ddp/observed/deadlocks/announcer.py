"""A rank lets the others know what it enters and when it waits, and looks whether they do the same."""

import gc
import sys
import threading
from _thread import start_new_thread
from collections.abc import Collection, Sequence
from datetime import timedelta
from pathlib import Path
from threading import get_ident
from time import sleep
from types import FrameType

from torch.distributed import distributed_c10d
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import GroupName

from pytest_ddp.errors import CollectiveMismatch
from pytest_ddp.observed.deadlocks.board import SLOTS, Post, State, key_of
from pytest_ddp.observed.deadlocks.matching import mismatch
from pytest_ddp.observed.deadlocks.peers import Peers
from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.fingerprint import RECV, Fingerprint, notice_of
from pytest_ddp.observed.recording import current
from pytest_ddp.observed.recording.interfaces import Monitor

_LOOK_SECONDS = 0.02


class Announcer(Monitor):
    """Posts every operation of this rank, and raises CollectiveMismatch for one that does not fit another rank's.

    Attributes:
        post: this rank's part of the board.
        patience: the shortest timeout that nobody has asked for. A wait with a shorter one ends by itself, and may be
            meant to: it is no deadlock.
    """

    _lock = threading.RLock()  # one for all: a process has one part of the board

    def __init__(self, post: Post, patience: timedelta, others: Peers, rank: int) -> None:
        self.post = post
        self.patience = patience
        self._rank = rank
        self._others = others
        self._posted: dict[int, int] = {}
        self._loose: set[tuple[str, int]] = set()
        self._waits: dict[int, Sequence[Entry]] = {}
        self._idle: set[int] = set()
        self._looks_again = False

    @classmethod
    def begin(cls, board: int, rank: int, group: str, group_timeout: float) -> "Announcer":
        """Begin a rank's part of the board (a file descriptor) anew, for a group with a timeout of so many seconds."""
        key = key_of(group)
        with cls._lock:
            post = Post(board, rank, key)
        return cls(post, min(timedelta(seconds=group_timeout), default_pg_timeout), Peers(board, rank, key), rank)

    def before_operation(self, entry: Entry) -> None:
        """Post an operation; raise CollectiveMismatch if it does not fit what another rank has posted."""
        wrong = self._post(entry)
        if wrong:
            raise CollectiveMismatch(wrong)

    def wait_began(self, entries: Sequence[Entry], timeout: timedelta | None) -> None:
        """Say that a thread waits; a rank of which another thread may go on counts as one that runs."""
        for_ever = all(timeout_of(entry.group, timeout) >= self.patience for entry in entries)
        with self._lock:
            self._waits[get_ident()] = entries if for_ever else ()
            self._tell()

    def wait_ended(self, entries: Sequence[Entry]) -> None:  # noqa: ARG002  a thread waits in one place at a time
        """Say that it waits no more."""
        with self._lock:
            if self._waits.pop(get_ident(), None) is not None:
                self._tell()

    def run_began(self) -> None:
        """Say that this rank has something to do again."""
        with self._lock:
            self._idle.clear()
            self._tell()

    def run_ended(self) -> None:
        """Say that this rank's part of the run is over, unless threads of it go on."""
        with self._lock:
            self._idle.add(get_ident())
            self._tell()

    def unmatched_operations(self) -> list[str]:
        """Return in words what this rank has begun and others have not taken part in, each only once."""
        with self._lock:
            return self._others.unmatched_operations()

    def _tell(self) -> None:
        """Say how this rank stands; while other threads speak against its waiting, look again now and then."""
        state, waits_in = self._stands()
        self.post.tell(state, waits_in)
        if state == State.MAY_GO_ON and not self._looks_again:
            self._looks_again = True
            start_new_thread(self._look_again, ())

    def _look_again(self) -> None:
        while True:
            sleep(_LOOK_SECONDS)
            with self._lock:
                state, waits_in = self._stands()
                if state == State.MAY_GO_ON and current.monitor() is self:
                    continue
                self._looks_again = False
                if current.monitor() is self:
                    self.post.tell(state, waits_in)
                return

    def _stands(self) -> tuple[State, int]:
        if not self._waits:
            return (State.MAY_GO_ON if self._idle and has_company(self._idle) else State.RUNS), 0
        entries = next(iter(self._waits.values()))
        last = self._posted.get(entries[-1].number) if entries else None
        if last is None or len(self._waits) > 1 or not _is_one_line(entries) or has_company(self._waits):
            return State.MAY_GO_ON, last or 0
        return State.WAITS, last

    def _post(self, entry: Entry) -> str | None:
        """Post an operation first, then look at what the others have posted; return what does not fit."""
        with self._lock:
            notice = self._notice(entry)
            index = self._posted[entry.number] = self.post.posted
            data = self.post.post(notice.encode())
            if len(self._posted) > SLOTS:
                del self._posted[next(iter(self._posted))]
            wrong = (mismatch(notice, theirs) for theirs in self._others.meet(notice, index, data))
            return next(filter(None, wrong), None)

    def _notice(self, entry: Entry) -> Fingerprint:
        if entry.op == RECV and entry.peer is None:
            self._loose.add((entry.group, entry.tag))
        loose = entry.op == RECV and (entry.group, entry.tag) in self._loose
        return notice_of(entry, self._rank, loose=loose)


def _is_one_line(entries: Sequence[Entry]) -> bool:
    """Whether who has come to the last of these operations has come to all: they are collectives of one group."""
    groups = {entry.group for entry in entries}
    return len(entries) == 1 or (len(groups) == 1 and not any(entry.point_to_point for entry in entries))


# Whether a process has threads that may do something while others of it wait.

_HARNESS = str(Path(__file__).parents[2])
_looking = threading.Lock()  # two that look at once could leave the collector off


def has_company(threads: Collection[int]) -> bool:
    """Whether threads of Python other than these (by identifier) are running, apart from the harness's own.

    Threads of C++ do not count: they run Python at most for a moment, and what they then do is seen like anything else.
    """
    frames = _frames()
    return any(not _is_harness(frame) for thread, frame in frames.items() if thread not in threads)


def _frames() -> dict[int, FrameType]:
    """Return the innermost frame of each thread, also of threads that `threading` does not know.

    Some CPythons (3.11.7 is one) make that dict under a lock; if garbage is collected just then, they hang.
    """
    with _looking:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()  # noqa: SLF001  no public way
        finally:
            if collects:
                gc.enable()


def _is_harness(frame: FrameType) -> bool:
    """Whether a thread was started by us, to destroy a group or to look again."""
    outermost = frame
    while outermost.f_back is not None:
        outermost = outermost.f_back
    return outermost.f_code.co_filename.startswith(_HARNESS)


# After how long torch itself gives up a wait.


def timeout_of(group: str, asked: timedelta | None) -> timedelta:
    """Return after how long a wait in the group of that name fails: as was asked for, else as the group says."""
    if asked is not None:
        return asked
    found = distributed_c10d._resolve_process_group(GroupName(group))  # noqa: SLF001  torch's own way
    backend = found._get_backend(found._device_types[0])  # noqa: SLF001  no public way
    timeout: timedelta = backend.options._timeout  # noqa: SLF001  likewise
    return timeout
