"""Announces to the other ranks what this rank enters and when it waits, and compares it with what they announce."""

import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta

from pytest_ddp.errors import CollectiveMismatch
from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.fingerprint import fingerprint_of
from pytest_ddp.observed.recording.record import Monitor
from pytest_ddp.operations.fingerprint import Fingerprint, Key
from pytest_ddp.operations.matching import mismatch
from pytest_ddp.operations.table import RECV
from pytest_ddp.operations.wait_graph import Position, need_of
from pytest_ddp.planning.world import rank_list
from pytest_ddp.protocol.flight_recorder import SLOTS, Reader, Recorder
from pytest_ddp.torch_internals import group_timeout

_REMEMBERED = 64  # of our own records: ranks that do the same are seldom further apart


class Announcer(Monitor):
    """Records every operation of this rank; raises CollectiveMismatch for one that does not match another rank's.

    Attributes:
        recorder: this rank's area of the flight recorder.
    """

    _lock = threading.RLock()  # one for all: a process has one area

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._indices: dict[int, int] = {}
        self._received_from_any: set[tuple[str, int]] = set()
        self._readers: dict[int, Reader] = {}
        self._reported: set[str] = set()
        self._ours: dict[int, bytes] = {}
        self._theirs: dict[tuple[int, Key], Fingerprint] = {}

    def before_operation(self, entry: Entry) -> None:
        """Record an operation; raise CollectiveMismatch if it does not match what another rank has recorded."""
        with self._lock:
            wrong = self._record(entry)
        if wrong:
            raise CollectiveMismatch(wrong)

    def wait_began(self, entries: Sequence[Entry], timeout: timedelta | None) -> None:
        """Say that this rank waits in the last of these operations, if the others are over when it is."""
        groups = {entry.group for entry in entries}
        index = self._indices.get(entries[-1].number)
        together = len(entries) == 1 or (len(groups) == 1 and not any(entry.point_to_point for entry in entries))
        if index is not None and together:
            self.recorder.mark_waiting(index, timeout or group_timeout(entries[-1].group))

    def wait_ended(self) -> None:
        """Say that this rank no longer waits: a thread waits in one place at a time."""
        self.recorder.mark_running()

    def unmatched_operations(self) -> list[str]:
        """Return the operations that other ranks did not enter, in words, oldest first, each only once.

        Operations that block are complete, so all ranks have entered them.
        """
        with self._lock:
            ours = self._position(self.recorder.rank)
            begun = [fingerprint for fingerprint in ours.entered if fingerprint.asynchronous]
            others = {other for fingerprint in begun for other in fingerprint.ranks} - {ours.rank}
            positions = {ours.rank: ours} | {other: self._position(other) for other in others}
            absent = [(fingerprint, need_of(fingerprint, positions).absent) for fingerprint in begun]
            found = [
                f"{fingerprint}, in which {rank_list(ranks)} took no part" for fingerprint, ranks in absent if ranks
            ]
            new = [text for text in found if text not in self._reported]
            self._reported.update(new)
            return new

    def _record(self, entry: Entry) -> str | None:
        """Record an operation first, then look at what the others have recorded; return what does not match."""
        fingerprint = self._fingerprint(entry)
        index = self._indices[entry.number] = self.recorder.count
        data = self.recorder.record(fingerprint.encode())
        if len(self._indices) > SLOTS:
            del self._indices[next(iter(self._indices))]
        wrong = (mismatch(fingerprint, theirs) for theirs in self._matching(fingerprint, index, data))
        return next(filter(None, wrong), None)

    def _fingerprint(self, entry: Entry) -> Fingerprint:
        if entry.op == RECV and entry.peer is None:
            self._received_from_any.add((entry.group, entry.tag))
        after_any_rank = entry.op == RECV and (entry.group, entry.tag) in self._received_from_any
        return fingerprint_of(entry, self.recorder.rank, after_any_rank=after_any_rank)

    def _matching(self, fingerprint: Fingerprint, index: int, data: bytes) -> Iterator[Fingerprint]:
        """Yield the operations of other ranks that have the key of `fingerprint`, which this rank recorded as `data`.

        A rank that enters the same operations writes the same records: these are not even decoded.
        """
        if fingerprint.is_same_on_all_ranks:
            self._ours[index] = data
        self._ours.pop(index - _REMEMBERED, None)
        for rank in fingerprint.others:
            if rank not in self._readers:
                self._readers[rank] = self.recorder.reader(rank)
            reader = self._readers[rank]
            while (ours := self._ours.get(reader.next)) is not None and reader.pass_over(ours):
                pass
            if reader.next <= index or not fingerprint.is_same_on_all_ranks:
                self._read(reader)
            theirs = self._theirs.pop((rank, fingerprint.key), None) if self._theirs else None
            if theirs is not None:
                yield theirs

    def _read(self, reader: Reader) -> None:
        for _, data in reader.new():
            theirs = Fingerprint.decode(data, reader.rank)
            if theirs is not None and self.recorder.rank in theirs.others:
                self._theirs[reader.rank, theirs.key] = theirs

    def _position(self, rank: int) -> Position:
        reader = self.recorder.reader(rank)
        found = [Fingerprint.decode(data, rank) for _, data in reader.new()]
        all_known = reader.is_there and not reader.missed and all(found)
        return Position(rank, tuple(filter(None, found)), all_known=all_known)
