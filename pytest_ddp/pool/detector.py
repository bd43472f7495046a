"""Finds deadlocks: the controller reads the flight recorder while it waits for its ranks."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pytest_ddp.observed.timeline import recorded_timeline
from pytest_ddp.operations.fingerprint import Fingerprint
from pytest_ddp.operations.matching import first_mismatch
from pytest_ddp.operations.wait_graph import Position, needs_of, ranks_that_wait_for_ever, wait_text
from pytest_ddp.outcomes.outcome import Died, Outcome, Raised, Returned, Skipped
from pytest_ddp.protocol.flight_recorder import Head, Reader, State, key_of

LOOK_SECONDS = 0.02
_WORDS: dict[type[Outcome], str] = {Returned: "returned", Raised: "failed", Skipped: "skipped", Died: "died"}


class Refresh(Protocol):
    """Brings the flight recorder up to date."""

    def __call__(self, *, now: bool) -> None:
        """Do so; unless `now`, only if that takes a small share of the time."""


def up_to_date(*, now: bool) -> None:
    """Do nothing: all ranks of this machine write to one file."""


@dataclass
class Detector:
    """Looks at the ranks of one run.

    `deadlocked` proves what it finds: it reads the positions of all ranks, and then once more the head of each rank
    that waits for ever. A rank whose head has not changed stood still all the while, so all of them did at one moment.

    Where ranks are not observed, an operation may escape the record (C++ issued it on torch before 2.15). So there all
    ranks that have not answered must stand still, and none of the others may have died: a connection that breaks ends
    waits.

    `fd` is the file of the flight recorder, `size` the world size and `group` the name of the default group. The areas
    of ranks on other nodes are copies, which `refresh` brings up to date. The first of two looks may see older ones: a
    rank whose head is the same at the second look has stood still since.
    """

    fd: int
    size: int
    group: str
    observed: bool
    refresh: Refresh = up_to_date
    _readers: list[Reader] = field(init=False)
    _records: list[dict[int, Fingerprint | None]] = field(init=False)
    _before: dict[int, Head] = field(default_factory=dict)
    _judged: list[Head] = field(default_factory=list)

    def __post_init__(self) -> None:
        key = key_of(self.group)
        self._readers = [Reader(self.fd, rank, key) for rank in range(self.size)]
        self._records = [{} for _ in self._readers]

    def deadlocked(self, pending: Collection[int], outcomes: Mapping[int, Outcome]) -> Collection[int]:
        """Return those of the ranks that have not answered which wait for ever; `outcomes` are those of the others."""
        self.refresh(now=False)
        heads = [self._head(rank) for rank in range(self.size)]
        waiting = {rank: heads[rank] for rank in pending if heads[rank].state == State.WAITS}
        unchanged, self._before = waiting == self._before, waiting
        if not waiting or not unchanged or heads == self._judged:  # not yet worth reading it all, or read already
            return ()
        if not self.observed and (len(waiting) < len(pending) or any(not _is_alive(o) for o in outcomes.values())):
            return ()
        found = ranks_that_wait_for_ever(self._positions(pending, outcomes))
        if found:
            self.refresh(now=True)
        stood_still = all(self._head(rank) == heads[rank] for rank in found)
        if found and stood_still and (self.observed or len(found) == len(pending)):
            return found
        self._judged = heads
        return ()

    def waits(self, pending: Collection[int], outcomes: Mapping[int, Outcome]) -> dict[int, dict[str, str]]:
        """Return in words what each rank waits in, and why that does not come, if it waits."""
        positions = self._positions(pending, outcomes)
        needs = needs_of(positions)
        return {
            rank: {
                "waits": wait_text(rank, positions, needs=needs),
                "chain": wait_text(rank, positions, needs=needs, chain=True),
            }
            for rank in pending
        }

    def mismatch(self) -> tuple[int, str] | None:
        """Return a rank of which an operation does not match that of another rank, and how; None if all match."""
        return first_mismatch({rank: self._position(rank, over="").entered for rank in range(self.size)})

    def timeline(self, rank: int) -> str:
        """Return what a rank has entered, and what it waits in, as a short table."""
        position = self._position(rank, over="")
        return recorded_timeline(position.entered, position.waits_in)

    def _head(self, rank: int) -> Head:
        """Return the head of a rank's area; that of one which runs if it is not in the group."""
        reader = self._readers[rank]
        head = reader.head()
        return head if head.key == reader.key else Head(head.version)

    def _positions(self, pending: Collection[int], outcomes: Mapping[int, Outcome]) -> dict[int, Position]:
        return {
            rank: self._position(rank, "" if rank in pending else self._ended(rank, outcomes.get(rank)))
            for rank in range(self.size)
        }

    def _ended(self, rank: int, outcome: Outcome | None) -> str:
        """Say how a rank ended; "" if it has answered but a thread of it may go on."""
        if outcome is None:
            return "not taken part"
        return (
            ""
            if _is_alive(outcome) and self._head(rank).state == State.RUNS
            else _WORDS.get(type(outcome), "been ended")
        )

    def _position(self, rank: int, over: str) -> Position:
        reader, records, head = self._readers[rank], self._records[rank], self._head(rank)
        records.update((index, Fingerprint.decode(data, rank)) for index, data in reader.new())
        waits_in = records.get(head.waits_in) if head.state == State.WAITS and not over else None
        entered = tuple(filter(None, records.values()))
        return Position(rank, entered, waits_in, over, all_known=not reader.missed and all(records.values()))


def _is_alive(outcome: Outcome) -> bool:
    return isinstance(outcome, Returned | Raised | Skipped)
