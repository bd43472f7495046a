"""Whether a thread has done anything between two looks at it."""

from dataclasses import dataclass
from pathlib import Path

_SLEEPS = "S"  # see proc(5); a thread that waits for the disk, its memory or a processor does not sleep


@dataclass
class Sleeper:
    """A thread of this process, by its native id, that somebody looks at again and again."""

    thread: int
    _wakings: str = ""

    def sleeps(self) -> bool:
        """Whether the thread has slept ever since the last look; True where the system does not tell (off Linux)."""
        try:
            status = Path(f"/proc/self/task/{self.thread}/status").read_text(encoding="utf-8")
        except OSError:
            return True
        told = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        before, self._wakings = self._wakings, told["voluntary_ctxt_switches"]
        return told["State"].startswith(_SLEEPS) and self._wakings == before
