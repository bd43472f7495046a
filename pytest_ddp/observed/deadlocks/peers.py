"""What the other ranks have posted, as far as this rank has not met it yet."""

from collections.abc import Iterator

from pytest_ddp.observed.deadlocks.board import Area
from pytest_ddp.observed.deadlocks.wait_graph import Standing, want
from pytest_ddp.observed.fingerprint import Fingerprint, Meeting
from pytest_ddp.planning.world import rank_list

_REMEMBERED = 64  # of our own notices: ranks that do the same are seldom further apart


class Peers:
    """Reads the board for one rank."""

    def __init__(self, fd: int, rank: int, key: int) -> None:
        self._fd, self._rank, self._key = fd, rank, key
        self._areas: dict[int, Area] = {}
        self._told: set[str] = set()
        self._ours: dict[int, bytes] = {}
        self._notices: dict[tuple[int, Meeting], Fingerprint] = {}

    def meet(self, notice: Fingerprint, index: int, data: bytes) -> Iterator[Fingerprint]:
        """Yield the operations of other ranks that have come to meet this one of ours, posted as `data`.

        A rank that does the same posts the same: its notices are not even looked into.
        """
        if notice.is_same_everywhere:
            self._ours[index] = data
        self._ours.pop(index - _REMEMBERED, None)
        for rank in notice.others:
            area = self._area(rank)
            while (ours := self._ours.get(area.next)) is not None and area.pass_over(ours):
                pass
            if area.next <= index or not notice.is_same_everywhere:
                self._read(area)
            theirs = self._notices.pop((rank, notice.meeting), None) if self._notices else None
            if theirs is not None:
                yield theirs

    def unmatched_operations(self) -> list[str]:
        """Return in words what this rank has begun and others have not taken part in, each only once."""
        found = [text for text in leftovers(self._fd, self._rank, self._key) if text not in self._told]
        self._told.update(found)
        return found

    def _area(self, rank: int) -> Area:
        if rank not in self._areas:
            self._areas[rank] = Area(self._fd, rank, self._key)
        return self._areas[rank]

    def _read(self, area: Area) -> None:
        for _, text in area.new():
            theirs = Fingerprint.decode(text, area.rank)
            if theirs is not None and self._rank in theirs.others:
                self._notices[area.rank, theirs.meeting] = theirs


# What a rank has begun and no other rank has taken part in: sends that nobody received, handles of one rank alone.


def leftovers(fd: int, rank: int, key: int) -> list[str]:
    """Return the operations of a rank that lack others, in words, oldest first.

    One that blocks has met the others when it is over; those of others are looked up on the board, a file descriptor.
    """
    ours = _standing(Area(fd, rank, key))
    begun = [notice for notice in ours.notices if notice.asynchronous]
    others = {other for notice in begun for other in notice.ranks if other != rank}
    standings = {rank: ours} | {other: _standing(Area(fd, other, key)) for other in others}
    wants = (want(notice, standings) for notice in begun)
    return [f"{wanted.of}, in which {rank_list(wanted.absent)} took no part" for wanted in wants if wanted.absent]


def _standing(area: Area) -> Standing:
    notices = [Fingerprint.decode(text, area.rank) for _, text in area.new()]
    known = tuple(notice for notice in notices if notice is not None)
    return Standing(area.rank, known, all_known=not area.missed and len(known) == len(notices))
