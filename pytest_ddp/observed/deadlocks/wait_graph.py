"""Which ranks wait for what can never come, from what each rank has posted.

A rank *is free* when it runs, or when everything that it waits for has come or may still come from ranks that are
free. Those that wait and are not free wait for one another, or for ranks that will do no more: whatever happens, they
wait for ever. A rank of which not everything is known counts as free.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pytest_ddp.observed.deadlocks.matching import differences
from pytest_ddp.observed.fingerprint import ANYONE, RECV, SEND, Fingerprint, Meeting
from pytest_ddp.planning.world import rank_list


@dataclass(frozen=True)
class Standing:
    """How a rank stands.

    Attributes:
        rank: the rank.
        notices: what it has entered in this group, oldest first.
        waits_in: what it waits in, if it waits and does nothing else.
        over: what it has done for good ("returned"), "" while it runs or waits.
        all_known: whether `notices` holds all that it has entered.
    """

    rank: int
    notices: tuple[Fingerprint, ...] = ()
    waits_in: Fingerprint | None = None
    over: str = ""
    all_known: bool = True

    @cached_property
    def reached(self) -> dict[Meeting, int]:
        """How far it has come in each line of operations."""
        return {notice.line: notice.number for notice in self.notices}

    def entered_with(self, notice: Fingerprint) -> Fingerprint | None:
        """Return the operation that meets another rank's; a group made anew under its name counts from 1 again."""
        if self.reached.get(notice.line, 0) < notice.number:
            return None
        return self._meetings.get(notice.meeting)

    @cached_property
    def _meetings(self) -> dict[Meeting, Fingerprint]:
        return {notice.meeting: notice for notice in self.notices}

    @property
    def done(self) -> list[Fingerprint]:
        """The operations that are certainly complete: those that block, and from which it has gone on."""
        passed = self.notices if self.over else self.notices[:-1]
        return [notice for notice in passed if not notice.asynchronous and notice != self.waits_in]


@dataclass(frozen=True)
class Want:
    """What a waiting rank has not got.

    Attributes:
        of: the operation that it waits in.
        absent: the ranks that have not entered it.
        unlike: what others have entered instead of it, by rank; that was a mistake, of which they are being told.
        one_is_enough: whether one of the absent would do.
    """

    of: Fingerprint
    absent: tuple[int, ...] = ()
    unlike: Mapping[int, Fingerprint] = field(default_factory=dict)
    one_is_enough: bool = False

    def may_come(self, free: Iterable[int]) -> bool:
        """Whether it may still come, or the wait may still be ended, by ranks that are free."""
        needed = {*self.absent, *self.unlike}
        enough = any if self.one_is_enough and needed else all
        return enough(rank in free for rank in needed)


def stuck(standings: Mapping[int, Standing]) -> dict[int, Want]:
    """Return the ranks that wait for ever, each with what it wants."""
    wants = {rank: want(s.waits_in, standings) for rank, s in standings.items() if s.waits_in and not s.over}
    free = {rank for rank, standing in standings.items() if rank not in wants and not standing.over}
    while freed := {rank for rank, wanted in wants.items() if rank not in free and wanted.may_come(free)}:
        free |= freed
    return {rank: wanted for rank, wanted in wants.items() if rank not in free}


def want(notice: Fingerprint, standings: Mapping[int, Standing]) -> Want:
    """Return what an operation still needs of others."""
    others = [standings[rank] for rank in notice.others if rank in standings]
    if _may_meet_by_chance(notice, standings):
        return Want(notice)
    if notice.peer == ANYONE:
        return Want(notice, tuple(other.rank for other in others), one_is_enough=True)
    here = {other.rank: other.entered_with(notice) for other in others}
    unlike = {rank: theirs for rank, theirs in here.items() if theirs is not None and differences(notice, theirs)}
    absent = tuple(other.rank for other in others if here[other.rank] is None and _is_behind(other, notice))
    return Want(notice, absent, unlike)


def _is_behind(other: Standing, notice: Fingerprint) -> bool:
    """Whether another rank has certainly not entered an operation."""
    reached = other.reached.get(notice.line)
    return other.all_known if reached is None else reached < notice.number


def _may_meet_by_chance(notice: Fingerprint, standings: Mapping[int, Standing]) -> bool:
    """Whether a message may pass through a receive from anyone, so that it need not meet its like.

    Which receive takes which message cannot be known. But when all messages of one side have certainly met one of the
    other, there is none left.
    """
    receiver = None if notice.receiver is None else standings.get(notice.receiver)
    if receiver is None:
        return False
    senders = [standings[rank] for rank in notice.ranks if rank in standings and rank != receiver.rank]
    receives = [theirs for theirs in receiver.notices if theirs.op == RECV and _is_alike(theirs, notice)]
    sends = [theirs for sender in senders for theirs in sender.notices if _goes_to(receiver, theirs, notice)]
    if not all(standing.all_known for standing in (receiver, *senders)):
        return True
    if notice.op == RECV:
        done = sum(theirs.op == RECV and _is_alike(theirs, notice) for theirs in receiver.done)
        return notice.peer == ANYONE and len(sends) > done
    done = sum(_goes_to(receiver, theirs, notice) for sender in senders for theirs in sender.done)
    return any(theirs.peer == ANYONE for theirs in receives) and len(receives) > done


def _is_alike(theirs: Fingerprint, notice: Fingerprint) -> bool:
    return (theirs.group, theirs.tag) == (notice.group, notice.tag)


def _goes_to(receiver: Standing, theirs: Fingerprint, notice: Fingerprint) -> bool:
    return theirs.op == SEND and theirs.peer == receiver.rank and _is_alike(theirs, notice)


# Says in words what a rank waits for, and why it will not come.


def wait_text(rank: int, standings: Mapping[int, Standing], *, chain: bool = False) -> str:
    """Say what a rank waits for; with `chain`, also what the ranks that it waits for wait for in turn.

    Returns:
        A clause such as "waits in all_reduce #2 float32[4] at train.py:31, which rank 1 never entered: it has
        returned"; "" for a rank that does not wait.
    """
    return _clause(rank, standings, (rank,) if chain else None)


def _clause(rank: int, standings: Mapping[int, Standing], told: tuple[int, ...] | None) -> str:
    notice = standings[rank].waits_in
    if notice is None:
        return ""
    wanted = want(notice, standings)
    unlike = [f"where rank {other} called {theirs}" for other, theirs in wanted.unlike.items()]
    absent = [_absence(notice, ranks, doing) for ranks, doing in _alike(wanted, standings, told)]
    return ", ".join([f"waits in {notice}", *unlike, *filter(None, absent)])


def _absence(notice: Fingerprint, ranks: list[int], doing: str) -> str:
    """Say that some ranks are missing in an operation, and what they do instead."""
    if notice.peer == ANYONE:
        return f"to which {rank_list(ranks)} never sent" + (f": {_subject(ranks)} {doing}" if doing else "")
    if notice.peer is not None:
        return f"which {doing}" if doing else ""
    return f"which {rank_list(ranks)} never entered" + (f": {_subject(ranks)} {doing}" if doing else "")


def _subject(ranks: list[int]) -> str:
    return "each" if len(ranks) > 1 else "it"


def _alike(
    wanted: Want, standings: Mapping[int, Standing], told: tuple[int, ...] | None
) -> list[tuple[list[int], str]]:
    """Group the ranks that are missing by what they do instead."""
    doing: dict[str, list[int]] = {}
    for rank in wanted.absent:
        doing.setdefault(_doing(standings[rank], standings, told), []).append(rank)
    return [(ranks, what) for what, ranks in doing.items()]


def _doing(standing: Standing, standings: Mapping[int, Standing], told: tuple[int, ...] | None) -> str:
    if standing.over:
        return f"has {standing.over}"
    if told is None or standing.rank in told:
        return ""
    return _clause(standing.rank, standings, (*told, standing.rank))
