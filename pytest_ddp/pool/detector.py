"""Finds deadlocks: the controller reads the flight recorder while it waits for its ranks."""

from collections.abc import Collection
from dataclasses import dataclass, field

from pytest_ddp.observed.timeline import recorded_timeline
from pytest_ddp.operations.fingerprint import Fingerprint
from pytest_ddp.operations.wait_graph import Position, ranks_that_wait_for_ever, wait_text
from pytest_ddp.outcomes.outcome import Deadlocked, Died, Outcome, Raised, Returned, Skipped, Stopped, TimedOut
from pytest_ddp.protocol.flight_recorder import Head, Reader, State, key_of

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

    `deadlocked` proves what it finds: it reads the positions of all ranks, and then once more the head of each rank
    that waits for ever. A rank whose head has not changed stood still all the while, so all of them did at one moment.

    Attributes:
        fd: the file of the flight recorder.
        size: the world size.
        group: the name of the default group.
    """

    fd: int
    size: int
    group: str
    _readers: dict[int, Reader] = field(default_factory=dict)
    _records: dict[int, dict[int, Fingerprint | None]] = field(default_factory=dict)
    _outcomes: dict[int, Outcome] = field(default_factory=dict)
    _before: dict[int, Head] = field(default_factory=dict)

    def __post_init__(self) -> None:
        key = key_of(self.group)
        self._readers = {rank: Reader(self.fd, rank, key) for rank in range(self.size)}
        self._records = {rank: {} for rank in range(self.size)}

    def add(self, outcome: Outcome) -> None:
        """Take note of how a rank's run ended."""
        self._outcomes[outcome.rank] = outcome

    def deadlocked(self, pending: Collection[int]) -> frozenset[int]:
        """Return those of the ranks that have not answered which wait for ever."""
        heads = {rank: self._head(rank) for rank in pending}
        waiting = {rank: head for rank, head in heads.items() if head.state == State.WAITS}
        unchanged, self._before = waiting == self._before, waiting
        if not waiting or not unchanged:  # nobody has waited since the last look: not yet worth reading it all
            return frozenset()
        found = ranks_that_wait_for_ever(self._positions(pending))
        return frozenset(found) if all(self._head(rank) == heads[rank] for rank in found) else frozenset()

    def waits(self, rank: int, pending: Collection[int]) -> dict[str, str]:
        """Return in words what a rank waits in and why that does not come, if it waits."""
        positions = self._positions(pending)
        return {"waits": wait_text(rank, positions), "chain": wait_text(rank, positions, chain=True)}

    def timeline(self, rank: int) -> str:
        """Return what a rank has entered, and what it waits in, as a short table."""
        position = self._position(rank, over="")
        return recorded_timeline(position.entered, position.waits_in)

    def _head(self, rank: int) -> Head:
        """Return the head of a rank's area; that of one which runs if it is not in the group."""
        reader = self._readers[rank]
        head = reader.head()
        return head if head.key == reader.key else Head(head.version)

    def _positions(self, pending: Collection[int]) -> dict[int, Position]:
        return {rank: self._position(rank, "" if rank in pending else self._ended(rank)) for rank in self._readers}

    def _ended(self, rank: int) -> str:
        return _WORDS[type(self._outcomes[rank])] if rank in self._outcomes else "not taken part"

    def _position(self, rank: int, over: str) -> Position:
        reader, records, head = self._readers[rank], self._records[rank], self._head(rank)
        records.update((index, Fingerprint.decode(data, rank)) for index, data in reader.new())
        waits_in = records.get(head.waits_in) if head.state == State.WAITS and not over else None
        if head.state == State.RUNS and isinstance(self._outcomes.get(rank), Returned | Raised | Skipped):
            over = ""  # a thread of it goes on, or it has not come to rest
        return Position.of(rank, [*records.values()], waits_in, over, missed=reader.missed)
