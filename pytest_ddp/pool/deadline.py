"""How long the ranks of a run are waited for."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from pytest_ddp.outcomes.outcome import Outcome, Returned, Skipped
from pytest_ddp.pool.rank_process import RankProcess
from pytest_ddp.protocol.messages import Disconnect

_LOOK_SECONDS = 0.005
_MORE_SECONDS = 0.1


@dataclass
class Deadline:
    """Lasts until the deadline; once a rank has failed, or others wait for one that skipped, only for the grace.

    Attributes:
        ends_at: when ranks that still run are ended, by the monotonic clock.
        grace: seconds that ranks get once another one has failed. Who is busy is waited for until it has had as much
            processor time, and who is about to say what it has failed of, until it has.
        disconnect: whether ranks that gave up break their connections, so that those which wait for them fail at once.
        any_failed: whether the grace has begun.
    """

    ends_at: float
    grace: float
    disconnect: bool = False
    any_failed: bool = False
    _still_since: float | None = None
    _grace_ends: float | None = None
    _had: dict[int, float] = field(default_factory=dict)
    _gave_up: list[RankProcess] = field(default_factory=list)
    _disconnected: set[int] = field(default_factory=set)

    @property
    def seconds(self) -> float | None:
        """How long to wait before the next look; None for as long as it takes."""
        if self._still_since is not None:
            return None
        left = max(0.0, self._end - time.monotonic())
        looking = self._gave_up and (self.disconnect or not self.any_failed)
        return min(left, _LOOK_SECONDS) if looking else left

    def is_over(self, pending: Collection[RankProcess]) -> bool:
        """Whether these ranks, which still run, are to be ended."""
        if self._still_since is not None or time.monotonic() < self._end:
            return False
        self._prolong_grace(pending)
        return time.monotonic() >= self._end

    def set_paused(self, *, paused: bool) -> None:
        """Let the clock stand still as long as a rank is in a debugger."""
        if paused and self._still_since is None:
            self._still_since = time.monotonic()
        elif not paused and self._still_since is not None:
            stood = time.monotonic() - self._still_since
            self.ends_at += stood
            if self._grace_ends is not None:
                self._grace_ends += stood
            self._still_since = None

    @property
    def any_failed_or_skipped(self) -> bool:
        """Whether a rank has failed or skipped."""
        return bool(self._gave_up)

    def add_outcome(self, process: RankProcess, outcome: Outcome, pending: Collection[RankProcess]) -> None:
        """Take note of how a rank's run ended, while these others still run."""
        if not isinstance(outcome, Returned):
            self._gave_up.append(process)
        if not isinstance(outcome, Returned | Skipped):
            self._begin_grace(pending)

    def check_waiting(self, pending: Collection[RankProcess]) -> bool:
        """See whether a rank waits for one that gave up; return whether a rank has hung up for that."""
        least = min((process.collectives_entered for process in self._gave_up), default=None)
        if least is None or not any(process.collectives_entered > least for process in pending):
            return False
        self._begin_grace(pending)
        if not self.disconnect:
            return False
        for process in self._gave_up:
            if process.rank not in self._disconnected:
                self._disconnected.add(process.rank)
                process.send(Disconnect())
        return True

    @property
    def _end(self) -> float:
        return self.ends_at if self._grace_ends is None else min(self.ends_at, self._grace_ends)

    def _begin_grace(self, pending: Collection[RankProcess]) -> None:
        if not self.any_failed:
            self.any_failed = True
            self._grace_ends = time.monotonic() + self.grace
            self._had = {process.rank: process.processor_seconds for process in pending}

    def _prolong_grace(self, pending: Collection[RankProcess]) -> None:
        """Give back what a busy machine has taken: a rank that fails of another one's end must be able to say so."""
        if self._grace_ends is not None and any(map(self._is_kept_from_saying, pending)):
            self._grace_ends = time.monotonic() + _MORE_SECONDS

    def _is_kept_from_saying(self, process: RankProcess) -> bool:
        had = process.processor_seconds - self._had.get(process.rank, 0.0)
        return process.is_raising or (process.is_busy and had < self.grace)
