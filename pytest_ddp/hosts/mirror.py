"""Copies of a remote rank's files on the controller's machine: its output, its stacks, its part of the flight recorder.

The host sends what has changed before anything else that the controller might draw conclusions from: before each
message of the rank, before the news that it ended, and when it is asked. So the copies are never older than a message.
"""

import os
from dataclasses import dataclass, field

from pytest_ddp.hosts.messages import Update
from pytest_ddp.protocol.flight_recorder import AREA, NOTE_AT, SLOT, SLOTS, Head
from pytest_ddp.protocol.shared_files import DISK_LIMIT, OUTPUT_LIMIT, SharedFiles, free_disk

_HALF = OUTPUT_LIMIT // 2


@dataclass
class Changes:
    """What has changed in the files of a rank of this host since it was last asked."""

    process: int
    shared: SharedFiles
    _output: int = 0
    _stacks: int = 0
    _freed: int = 0
    _slot: bytes = b""
    _head: Head = field(default_factory=Head)

    def take(self) -> Update | None:
        """Return what has changed; None if nothing has."""
        slots = self._new_slots()
        output, left_out = self._new_output()
        stacks = _read_from(self.shared.stacks.fileno(), self._stacks)
        self._stacks += len(stacks)
        if not (slots or output or stacks):
            return None
        body = b"".join([output, stacks, *slots.values()])
        return Update(self.process, len(output), len(stacks), left_out, tuple(slots), body)

    def _new_output(self) -> tuple[bytes, int]:
        """Return new output, and how many bytes of it are left out in the middle, because no report would show them."""
        file = self.shared.output.fileno()
        size = os.fstat(file).st_size
        start, self._output = min(self._output, size), size  # a test may have truncated the file
        if size - self._freed > DISK_LIMIT:
            free_disk(file, 0, start)
            self._freed = size
        if size - start <= OUTPUT_LIMIT:
            return os.pread(file, size - start, start), 0
        ends = os.pread(file, _HALF, start) + os.pread(file, _HALF, size - _HALF)
        return ends, size - start - OUTPUT_LIMIT

    def _new_slots(self) -> dict[int, bytes]:
        """Return the slots of the flight recorder that have changed; the head, slot 0, comes last."""
        fd, at = self.shared.recorder.fileno(), self.shared.rank * AREA
        head = os.pread(fd, SLOT, at)  # before the records that it counts
        if head == self._slot:
            return {}
        before, after = self._head, Head.unpacked(head)
        self._slot, self._head = head, after
        first = before.count if before.key == after.key else 0
        indices = range(max(first, after.count - SLOTS), after.count)
        slots = {slot: os.pread(fd, SLOT, at + slot * SLOT) for slot in (1 + index % SLOTS for index in indices)}
        return slots | {0: head}


def _read_from(file: int, start: int) -> bytes:
    return os.pread(file, max(0, os.fstat(file).st_size - start), start)


@dataclass
class Copies:
    """The controller's copies of a remote rank's files; its own descriptors, for the pool may close its files first.

    Attributes:
        rank: the rank.
        replaced: whether another process has taken the rank's place, and its part of the flight recorder.
    """

    rank: int
    output: int
    stacks: int
    recorder: int
    replaced: bool = False

    @classmethod
    def of(cls, shared: SharedFiles) -> "Copies":
        """Return the copies that these files are."""
        output, stacks, recorder = (os.dup(file.fileno()) for file in (shared.output, shared.stacks, shared.recorder))
        return cls(shared.rank, output, stacks, recorder)

    def apply(self, update: Update) -> None:
        """Write what has changed."""
        at, body = update.output, update.body
        self._append_output(body[:at], update.left_out)
        if update.stacks:
            os.write(self.stacks, body[at : at + update.stacks])
        at += update.stacks
        for number, slot in enumerate(() if self.replaced else update.slots):
            data = body[at + number * SLOT : at + (number + 1) * SLOT]
            os.pwrite(self.recorder, data, self.rank * AREA + slot * SLOT)

    def note(self, text: str) -> None:
        """Write down why the rank left, as it would have done."""
        if not self.replaced:
            data = text.encode()[: SLOT - NOTE_AT].ljust(SLOT - NOTE_AT, b"\0")
            os.pwrite(self.recorder, data, self.rank * AREA + NOTE_AT)

    def print(self, text: str) -> None:
        """Add to its output."""
        self._append_output(text.encode(), 0)

    def close(self) -> None:
        """Close the descriptors."""
        for fd in (self.output, self.stacks, self.recorder):
            os.close(fd)

    def _append_output(self, data: bytes, left_out: int) -> None:
        if not data:
            return
        before = len(data) // 2 if left_out else len(data)
        os.write(self.output, data[:before])
        if left_out:
            os.ftruncate(self.output, os.fstat(self.output).st_size + left_out)
            os.write(self.output, data[before:])
