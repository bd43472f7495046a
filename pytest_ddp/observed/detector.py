"""Finds deadlocks from outside: the controller looks at the board while it waits for its ranks."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pytest_ddp.observed.board import Area, Head, Reader, State
from pytest_ddp.observed.deadlock import Standing, stuck
from pytest_ddp.observed.notice import Notice

LOOK_SECONDS = 0.02
DIED = "died"


@dataclass
class Detector:
    """Looks at the ranks of one run.

    A look proves what it finds: it reads how all ranks stand and then, once more, the version of each rank that is
    stuck. One whose version has not changed stood still all the while, so all of them did at one moment in between.

    Attributes:
        fd: the board's file.
        size: the world size.
    """

    fd: int
    size: int
    _readers: dict[int, Reader] = field(default_factory=dict)
    _notices: dict[int, list[Notice]] = field(default_factory=dict)
    _before: dict[int, Head] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._readers = {rank: Reader(Area(self.fd, rank)) for rank in range(self.size)}
        self._notices = {rank: [] for rank in range(self.size)}

    def look(self, pending: Collection[int], over: Mapping[int, str]) -> frozenset[int]:
        """Return the ranks that wait for ever.

        Args:
            pending: the ranks that have not answered.
            over: what the others have done for good, such as "returned"; who is not named takes no part in the run.
        """
        heads = {rank: self._head(rank) for rank in range(self.size)}
        waiting = {rank: heads[rank] for rank in pending if heads[rank].state == State.WAITS}
        unchanged, self._before = waiting == self._before, waiting
        if not waiting or not unchanged:  # nobody has waited since the last look: not yet worth reading it all
            return frozenset()
        found = stuck(self.standings(pending, over))
        return frozenset(found) if all(self._head(rank) == heads[rank] for rank in found) else frozenset()

    def standings(self, pending: Collection[int], over: Mapping[int, str]) -> dict[int, Standing]:
        """Return how each rank stands."""
        return {
            rank: self._standing(rank, "" if rank in pending else over.get(rank, "not taken part"))
            for rank in range(self.size)
        }

    def _standing(self, rank: int, over: str) -> Standing:
        head = self._head(rank)
        reader = self._readers[rank]
        self._notices[rank] += reader.new(head.posted)
        waits_in = reader.area.read(head.waits_in) if head.state == State.WAITS and not over else None
        may_go_on = head.state == State.MAY_GO_ON and over != DIED
        return Standing(rank, tuple(self._notices[rank]), waits_in, "" if may_go_on else over, not reader.missed)

    def _head(self, rank: int) -> Head:
        return self._readers[rank].area.head()
