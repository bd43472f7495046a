"""Lets the other ranks know what this rank enters and when it waits, and sees whether they do the same."""

import threading
from collections.abc import Sequence
from datetime import timedelta

from pytest_ddp.errors import CollectiveMismatch
from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.fingerprint import fingerprint_of
from pytest_ddp.observed.peers import Peers
from pytest_ddp.observed.recording.interfaces import Monitor
from pytest_ddp.operations.fingerprint import Fingerprint
from pytest_ddp.operations.matching import mismatch
from pytest_ddp.operations.table import RECV
from pytest_ddp.protocol.flight_recorder import SLOTS, Recorder
from pytest_ddp.torch_internals import group_timeout


class Announcer(Monitor):
    """Records every operation of this rank; raises CollectiveMismatch for one that does not match another rank's.

    Attributes:
        recorder: this rank's area of the flight recorder.
    """

    _lock = threading.RLock()  # one for all: a process has one area

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._peers = Peers(recorder)
        self._indices: dict[int, int] = {}
        self._received_from_any: set[tuple[str, int]] = set()

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

    def wait_ended(self, entries: Sequence[Entry]) -> None:  # noqa: ARG002  a thread waits in one place at a time
        """Say that it waits no more."""
        self.recorder.mark_running()

    def unmatched_operations(self) -> list[str]:
        """Return in words what this rank has begun and others have not taken part in, each only once."""
        with self._lock:
            return self._peers.unmatched_operations()

    def _record(self, entry: Entry) -> str | None:
        """Record an operation first, then look at what the others have recorded; return what does not match."""
        fingerprint = self._fingerprint(entry)
        index = self._indices[entry.number] = self.recorder.count
        data = self.recorder.record(fingerprint.encode())
        if len(self._indices) > SLOTS:
            del self._indices[next(iter(self._indices))]
        wrong = (mismatch(fingerprint, theirs) for theirs in self._peers.matching(fingerprint, index, data))
        return next(filter(None, wrong), None)

    def _fingerprint(self, entry: Entry) -> Fingerprint:
        if entry.op == RECV and entry.peer is None:
            self._received_from_any.add((entry.group, entry.tag))
        after_any_rank = entry.op == RECV and (entry.group, entry.tag) in self._received_from_any
        return fingerprint_of(entry, self.recorder.rank, after_any_rank=after_any_rank)
