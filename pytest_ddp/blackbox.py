"""A rank's black box: the last collectives it entered, in memory that outlives the rank.

The rank writes into a mapped file that the controller also holds; whatever ends the rank (SIGKILL, a segfault,
`os._exit`), the controller can still read what it was doing.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

SLOT = 192
SLOTS = 64
_COUNT = struct.Struct("=Q")
_SIZE = SLOT * (SLOTS + 1)


@dataclass
class BlackBox:
    """A note, and a ring of the last `SLOTS` entries, each a line of text of at most `SLOT` bytes."""

    memory: mmap.mmap

    @classmethod
    def map(cls, fd: int) -> "BlackBox":
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
    def last_words(self) -> str:
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

    def read(self) -> tuple[str, ...]:
        """Return the entries, oldest first."""
        return tuple(self._entries())

    def _entries(self) -> Iterator[str]:
        for index in range(max(0, self.count - SLOTS), self.count):
            at = SLOT * (1 + index % SLOTS)
            yield self.memory[at : at + SLOT].rstrip(b"\0").decode(errors="replace")
