"""Finds deadlocks from outside: the controller looks at the board while it waits for its ranks."""

from collections.abc import Collection
from dataclasses import dataclass, field

from pytest_ddp.observed.deadlocks.board import Area, Head, State, key_of
from pytest_ddp.observed.deadlocks.wait_graph import Standing, stuck, wait_text
from pytest_ddp.observed.fingerprint import Fingerprint
from pytest_ddp.observed.timeline import posted_timeline
from pytest_ddp.outcomes.outcome import Deadlocked, Died, Outcome, Raised, Returned, Skipped, Stopped, TimedOut

LOOK_SECONDS = 0.02
_WORDS: dict[type[Outcome], str] = {
    Returned: "returned",
    Raised: "failed",
    Skipped: "skipped",
    Died: "died",
    TimedOut: "been ended",
    Stopped: "been ended",
    Deadlocked: "been ended",
}


@dataclass
class Detector:
    """Looks at the ranks of one run.

    `stuck` proves what it finds: it reads how all ranks stand and then, once more, the version of each rank that is
    stuck. One whose version has not changed stood still all the while, so all of them did at one moment in between.

    Attributes:
        fd: the board's file.
        size: the world size.
        group: the name of the default group.
    """

    fd: int
    size: int
    group: str
    _areas: dict[int, Area] = field(default_factory=dict)
    _notices: dict[int, dict[int, Fingerprint | None]] = field(default_factory=dict)
    _over: dict[int, Outcome] = field(default_factory=dict)
    _before: dict[int, Head] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._areas = {rank: Area(self.fd, rank, key_of(self.group)) for rank in range(self.size)}
        self._notices = {rank: {} for rank in range(self.size)}

    def hear(self, outcome: Outcome) -> None:
        """Take note of how a rank's run ended."""
        self._over[outcome.rank] = outcome

    def stuck(self, pending: Collection[int]) -> frozenset[int]:
        """Return those of the ranks that have not answered which wait for ever."""
        heads = {rank: self._areas[rank].head() for rank in pending}
        waiting = {rank: head for rank, head in heads.items() if head.state == State.WAITS}
        unchanged, self._before = waiting == self._before, waiting
        if not waiting or not unchanged:  # nobody has waited since the last look: not yet worth reading it all
            return frozenset()
        found = stuck(self._standings(pending))
        return frozenset(found) if all(self._areas[rank].head() == heads[rank] for rank in found) else frozenset()

    def told(self, rank: int, pending: Collection[int]) -> dict[str, str]:
        """Return in words what a rank waits in and why that does not come, if it waits."""
        standings = self._standings(pending)
        return {"waits": wait_text(rank, standings), "chain": wait_text(rank, standings, chain=True)}

    def timeline(self, rank: int) -> str:
        """Return what a rank has entered, and what it waits in, as a short table."""
        standing = self._standing(rank, over="")
        return posted_timeline(standing.notices, standing.waits_in)

    def _standings(self, pending: Collection[int]) -> dict[int, Standing]:
        return {rank: self._standing(rank, "" if rank in pending else self._became(rank)) for rank in self._areas}

    def _became(self, rank: int) -> str:
        return _WORDS[type(self._over[rank])] if rank in self._over else "not taken part"

    def _standing(self, rank: int, over: str) -> Standing:
        area, notices = self._areas[rank], self._notices[rank]
        head = area.head()
        notices.update((index, Fingerprint.decode(text, rank)) for index, text in area.new())
        waits_in = notices.get(head.waits_in) if head.state == State.WAITS and not over else None
        if head.state == State.MAY_GO_ON and isinstance(self._over.get(rank), Returned | Raised | Skipped):
            over = ""
        known = tuple(notice for notice in notices.values() if notice is not None)
        return Standing(rank, known, waits_in, over, all_known=not area.missed and len(known) == len(notices))
