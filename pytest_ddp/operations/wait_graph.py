"""Which ranks wait for ever, and for what, from the operations that each rank has entered.

A rank *is free* if it runs, or if all that it waits for has come or may still come from ranks that are free. Ranks
that wait and are not free wait for one another, or for ranks that will do no more: they wait for ever. A rank of which
not everything is known counts as free.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pytest_ddp.operations.fingerprint import ANY_RANK, Fingerprint, Key
from pytest_ddp.operations.matching import differences
from pytest_ddp.operations.table import RECV, SEND
from pytest_ddp.planning.world import rank_list


@dataclass(frozen=True)
class Position:
    """How far a rank has come.

    Attributes:
        entered: the operations that it has entered, oldest first.
        waits_in: the operation that it waits in, if it waits and does nothing else.
        over: how it ended ("returned"), "" while it runs or waits.
        all_known: whether `entered` has all that it has entered.
    """

    rank: int
    entered: tuple[Fingerprint, ...] = ()
    waits_in: Fingerprint | None = None
    over: str = ""
    all_known: bool = True

    @cached_property
    def reached(self) -> dict[Key, int]:
        """The last number that it has reached in each stream of operations."""
        return {fingerprint.stream: fingerprint.number for fingerprint in self.entered}

    def entered_with(self, fingerprint: Fingerprint) -> Fingerprint | None:
        """Return its operation with the key of another rank's; a group made anew with the same name counts from 1."""
        if self.reached.get(fingerprint.stream, 0) < fingerprint.number:
            return None
        return self._by_key.get(fingerprint.key)

    @cached_property
    def takes_any_message(self) -> bool:
        """Whether it has entered a receive from any rank."""
        return any(fingerprint.peer == ANY_RANK for fingerprint in self.entered)

    @cached_property
    def _by_key(self) -> dict[Key, Fingerprint]:
        return {fingerprint.key: fingerprint for fingerprint in self.entered}

    def is_behind(self, fingerprint: Fingerprint) -> bool:
        """Whether it has certainly not entered an operation that another rank has entered."""
        reached = self.reached.get(fingerprint.stream)
        return self.all_known if reached is None else reached < fingerprint.number

    @property
    def done(self) -> list[Fingerprint]:
        """The operations that are certainly complete: those that block, and that it has left."""
        passed = self.entered if self.over else self.entered[:-1]
        return [one for one in passed if not one.asynchronous and one != self.waits_in]


@dataclass(frozen=True)
class Need:
    """What an operation of a rank still needs of other ranks.

    Attributes:
        of: the operation.
        absent: the ranks that have not entered it.
        different: what other ranks have entered instead of it, by rank. They have been told so, and may raise.
        one_is_enough: whether one of the absent ranks would do.
    """

    of: Fingerprint
    absent: tuple[int, ...] = ()
    different: Mapping[int, Fingerprint] = field(default_factory=dict)
    one_is_enough: bool = False

    def may_be_met(self, free: Iterable[int]) -> bool:
        """Whether ranks that are free may still meet it, or end the wait."""
        needed = {*self.absent, *self.different}
        enough = any if self.one_is_enough and needed else all
        return enough(rank in free for rank in needed)


def ranks_that_wait_for_ever(positions: Mapping[int, Position]) -> dict[int, Need]:
    """Return the ranks that wait for ever, each with what it needs."""
    needs = {rank: need_of(p.waits_in, positions) for rank, p in positions.items() if p.waits_in and not p.over}
    free = {rank for rank, position in positions.items() if rank not in needs and not position.over}
    while freed := {rank for rank, need in needs.items() if rank not in free and need.may_be_met(free)}:
        free |= freed
    return {rank: need for rank, need in needs.items() if rank not in free}


def need_of(fingerprint: Fingerprint, positions: Mapping[int, Position]) -> Need:
    """Return what an operation still needs of other ranks."""
    others = [positions[rank] for rank in fingerprint.others if rank in positions]
    if _may_match_by_chance(fingerprint, positions):
        return Need(fingerprint)
    if fingerprint.peer == ANY_RANK:
        return Need(fingerprint, tuple(other.rank for other in others), one_is_enough=True)
    here = {other.rank: other.entered_with(fingerprint) for other in others}
    different = {rank: theirs for rank, theirs in here.items() if theirs and differences(fingerprint, theirs)}
    absent = tuple(other.rank for other in others if here[other.rank] is None and other.is_behind(fingerprint))
    return Need(fingerprint, absent, different)


def _may_match_by_chance(fingerprint: Fingerprint, positions: Mapping[int, Position]) -> bool:
    """Whether a receive from any rank may change which message this operation matches.

    Which receive takes which message cannot be known. But if all messages of one side have certainly been matched, none
    is left for this one.
    """
    receiver = None if fingerprint.receiver is None else positions.get(fingerprint.receiver)
    if receiver is None:
        return False
    senders = [positions[rank] for rank in fingerprint.ranks if rank in positions and rank != receiver.rank]
    if not all(position.all_known for position in (receiver, *senders)):
        return True
    if not receiver.takes_any_message:
        return False
    receives = [theirs for theirs in receiver.entered if theirs.op == RECV and _is_alike(theirs, fingerprint)]
    sends = [theirs for sender in senders for theirs in sender.entered if _goes_to(receiver, theirs, fingerprint)]
    if fingerprint.op == RECV:
        done = sum(theirs.op == RECV and _is_alike(theirs, fingerprint) for theirs in receiver.done)
        return fingerprint.peer == ANY_RANK and len(sends) > done
    done = sum(_goes_to(receiver, theirs, fingerprint) for sender in senders for theirs in sender.done)
    return any(theirs.peer == ANY_RANK for theirs in receives) and len(receives) > done


def _is_alike(theirs: Fingerprint, fingerprint: Fingerprint) -> bool:
    return (theirs.group, theirs.tag) == (fingerprint.group, fingerprint.tag)


def _goes_to(receiver: Position, theirs: Fingerprint, fingerprint: Fingerprint) -> bool:
    return theirs.op == SEND and theirs.peer == receiver.rank and _is_alike(theirs, fingerprint)


def wait_text(rank: int, positions: Mapping[int, Position], *, chain: bool = False, said: tuple[int, ...] = ()) -> str:
    """Say what a rank waits for; with `chain`, also what these ranks wait for in turn, if they are not in `said` yet.

    Returns:
        A clause such as "waits in all_reduce #2 float32[4] at train.py:31, which rank 1 never entered: it has
        returned"; "" for a rank that does not wait.
    """
    waits_in = positions[rank].waits_in
    if waits_in is None:
        return ""
    need = need_of(waits_in, positions)
    different = [f"where rank {other} called {theirs}" for other, theirs in need.different.items()]
    doing: dict[str, list[int]] = {}
    for other in need.absent:
        doing.setdefault(_doing(positions[other], positions, (*said, rank) if chain else None), []).append(other)
    absent = [_absence(waits_in, ranks, what) for what, ranks in doing.items()]
    return ", ".join([f"waits in {waits_in}", *different, *absent]) + _dropped_handle(waits_in, positions)


def _dropped_handle(waits_in: Fingerprint, positions: Mapping[int, Position]) -> str:
    """Ask for the handle of a message that was sent but did not arrive: gloo drops a message if its handle is freed."""
    sender = positions.get(waits_in.peer) if waits_in.op == RECV and waits_in.peer is not None else None
    sent = sender.entered_with(waits_in) if sender else None
    if sent is None or not sent.asynchronous or differences(waits_in, sent):
        return ""
    return f"; rank {sent.rank} sent it with isend: is the handle kept and waited for?"


def _absence(waits_in: Fingerprint, ranks: list[int], doing: str) -> str:
    """Say that ranks have not entered an operation, and what they do instead."""
    if waits_in.peer is not None and waits_in.peer != ANY_RANK:
        return f"which {doing or ('never received it' if waits_in.op == SEND else 'never sent it')}"
    missing = f"which {rank_list(ranks)} never entered"
    if waits_in.peer == ANY_RANK:
        missing = f"to which {rank_list(ranks)} never sent"
    return missing + (f": {'each' if len(ranks) > 1 else 'it'} {doing}" if doing else "")


def _doing(position: Position, positions: Mapping[int, Position], said: tuple[int, ...] | None) -> str:
    if position.over:
        return f"has {position.over}"
    if said is None or position.rank in said:
        return ""
    return wait_text(position.rank, positions, chain=True, said=said)
