"""A rank's black box: the last collectives it entered, in memory that outlives the rank.

The rank writes into a mapped file that the controller also holds; whatever ends the rank (SIGKILL, a segfault,
`os._exit`), the controller can still read what it was doing.
"""

import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

SLOT = 192
SLOTS = 64
_COUNT = struct.Struct("=Q")
_SIZE = SLOT * (SLOTS + 1)


@dataclass
class FlightRecorder:
    """A note, and a ring of the last `SLOTS` entries, each a line of text of at most `SLOT` bytes."""

    memory: mmap.mmap

    @classmethod
    def map(cls, fd: int) -> "FlightRecorder":
        """Map the file `fd`, growing it to its fixed size first."""
        if os.fstat(fd).st_size < _SIZE:
            os.ftruncate(fd, _SIZE)
        return cls(mmap.mmap(fd, _SIZE))

    def clear(self) -> None:
        """Forget every entry."""
        _COUNT.pack_into(self.memory, 0, 0)

    def note(self, text: str) -> None:
        """Write down why the rank is about to leave."""
        self.memory[_COUNT.size : SLOT] = text.encode()[: SLOT - _COUNT.size].ljust(SLOT - _COUNT.size, b"\0")

    @property
    def exit_note(self) -> str:
        """The note."""
        return self.memory[_COUNT.size : SLOT].rstrip(b"\0").decode(errors="replace")

    def write(self, text: str) -> None:
        """Add one entry; the count moves last, so a death in between never shows half an entry."""
        count = self.count
        at = SLOT * (1 + count % SLOTS)
        self.memory[at : at + SLOT] = text.encode()[:SLOT].ljust(SLOT, b"\0")
        _COUNT.pack_into(self.memory, 0, count + 1)

    @property
    def count(self) -> int:
        """How many entries were written since the last `clear`."""
        (count,) = _COUNT.unpack_from(self.memory, 0)
        return int(count)

    def read(self) -> "Entries":
        """Return the entries as they are now, oldest first."""
        count = self.count
        first = SLOT * (1 + count % SLOTS)
        written = self.memory[first:] + self.memory[SLOT:first] if count >= SLOTS else self.memory[SLOT:first]
        return Entries(written)


@dataclass(frozen=True)
class Entries(Sequence[str]):
    """A copy of a black box's entries, decoded when somebody looks: mostly nobody does."""

    _written: bytes

    def __len__(self) -> int:
        return len(self._written) // SLOT

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._lines[index]

    @cached_property
    def _lines(self) -> tuple[str, ...]:
        starts = range(0, len(self._written), SLOT)
        return tuple(self._written[at : at + SLOT].rstrip(b"\0").decode(errors="replace") for at in starts)
