"""What a rank has begun and no other rank has taken part in: sends that nobody received, handles of one rank alone."""

from pytest_ddp.observed.board import Area
from pytest_ddp.observed.deadlock import Standing, want
from pytest_ddp.observed.notice import Notice
from pytest_ddp.world import rank_list


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
    notices = [Notice.decode(text, area.rank) for _, text in area.new()]
    known = tuple(notice for notice in notices if notice is not None)
    return Standing(area.rank, known, all_known=not area.missed and len(known) == len(notices))
