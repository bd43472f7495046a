"""When the ranks of a run that have not answered are ended: at its deadline, or some time after a rank failed."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field

from pytest_ddp.outcomes.outcome import Outcome, Returned, Skipped
from pytest_ddp.pool.rank_process import RankProcess
from pytest_ddp.protocol.messages import Disconnect

_POLL_SECONDS = 0.005
_EXTENSION_SECONDS = 0.1
_SAMPLE_SECONDS = 0.5
_STARVED = 0.25  # the share of a core below which a rank that could run makes no progress to speak of


@dataclass
class Deadline:
    """The end of a run: its deadline, or `grace` seconds after the first failure if that is earlier.

    Attributes:
        pending: the ranks that still run.
        ends_at: the deadline, on the monotonic clock.
        grace: seconds that ranks get after another rank has failed, or once they wait for a rank that skipped. A busy
            rank gets as many seconds of CPU time. A rank that announced an exception is waited for.
        disconnect: whether ranks that failed or skipped break their connections when another rank waits for them.
        extra: seconds by which the deadline may move in all, while a rank could run and the machine gives it no core:
            it is slow then, and does not hang.
        any_failed: whether the grace has begun.
        failed_or_skipped: the ranks that failed or skipped.
    """

    pending: Collection[RankProcess]
    ends_at: float
    grace: float
    disconnect: bool = False
    extra: float = 0.0
    any_failed: bool = False
    failed_or_skipped: list[RankProcess] = field(default_factory=list)
    _paused_since: float | None = None
    _grace_ends_at: float | None = None
    _cpu_seconds_before: dict[int, float] = field(default_factory=dict)
    _sample: tuple[float, dict[int, float]] | None = None  # when it was taken, and the CPU seconds of ranks
    _disconnected: set[int] = field(default_factory=set)

    @property
    def seconds(self) -> float | None:
        """How long to wait for messages before the next check; None for no limit."""
        if self._paused_since is not None:
            return None
        left = max(0.0, self._end - time.monotonic())
        polls = self.failed_or_skipped and (self.disconnect or not self.any_failed)
        return min(left, _POLL_SECONDS) if polls else left

    def is_over(self) -> bool:
        """Whether the ranks that still run must be ended now."""
        if self._paused_since is not None or time.monotonic() < self._end:
            return False
        if self._grace_ends_at is not None and any(map(self._needs_more_time, self.pending)):
            self._grace_ends_at = time.monotonic() + _EXTENSION_SECONDS
        if time.monotonic() >= self.ends_at and self.extra > 0 and self._is_starved():
            longer = min(_SAMPLE_SECONDS, self.extra)
            self.ends_at, self.extra = time.monotonic() + longer, self.extra - longer
        return time.monotonic() >= self._end

    def set_paused(self, *, paused: bool) -> None:
        """Stop the clock while a rank is in a debugger."""
        if paused and self._paused_since is None:
            self._paused_since = time.monotonic()
        elif not paused and self._paused_since is not None:
            pause = time.monotonic() - self._paused_since
            self.ends_at += pause
            if self._grace_ends_at is not None:
                self._grace_ends_at += pause
            self._paused_since = None

    def add_outcome(self, process: RankProcess, outcome: Outcome) -> None:
        """Take into account how a rank's run ended."""
        if not isinstance(outcome, Returned):
            self.failed_or_skipped.append(process)
        if not isinstance(outcome, Returned | Skipped):
            self._begin_grace()

    def check_waiting(self) -> bool:
        """Check whether a rank waits for one that failed or skipped; return whether ranks disconnect for that reason.

        It does if it has entered more collectives.
        """
        fewest = min((process.collectives_entered for process in self.failed_or_skipped), default=None)
        if fewest is None or not any(process.collectives_entered > fewest for process in self.pending):
            return False
        self._begin_grace()
        for process in self.failed_or_skipped if self.disconnect else ():
            if process.rank not in self._disconnected:
                self._disconnected.add(process.rank)
                process.send(Disconnect())
        return self.disconnect

    @property
    def _end(self) -> float:
        return self.ends_at if self._grace_ends_at is None else min(self.ends_at, self._grace_ends_at)

    def _begin_grace(self) -> None:
        if not self.any_failed:
            self.any_failed = True
            self._grace_ends_at = time.monotonic() + self.grace
            self._cpu_seconds_before = {process.rank: process.cpu_seconds for process in self.pending}

    def _is_starved(self) -> bool:
        """Whether a rank could run and has got nearly no CPU time since the last call; at the first call, could run."""
        before, now = self._sample, time.monotonic()
        self._sample = now, {process.rank: process.cpu_seconds for process in self.pending}
        ready = [process.rank for process in self.pending if process.is_busy]
        if before is None:
            return bool(ready)
        enough = _STARVED * (now - before[0])
        return any(self._sample[1][rank] - before[1].get(rank, 0.0) < enough for rank in ready)

    def _needs_more_time(self, process: RankProcess) -> bool:
        """Whether a rank is likely to answer: a slow machine must not hide how it failed after the other rank."""
        used = process.cpu_seconds - self._cpu_seconds_before.get(process.rank, 0.0)
        return process.is_raising or (process.is_busy and used < self.grace)
