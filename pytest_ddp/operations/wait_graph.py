"""Which ranks wait for ever, and for what, from the operations that each rank has entered.

A rank *is free* if it runs, or if all that it waits for has come or may still come from ranks that are free. Ranks
that wait and are not free wait for one another, or for ranks that will do no more: they wait for ever. A rank of which
not everything is known counts as free.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pytest_ddp.operations.fingerprint import ANY_RANK, Fingerprint, Key
from pytest_ddp.operations.matching import differences
from pytest_ddp.operations.table import RECV, SEND
from pytest_ddp.planning.world import rank_list

_LONGEST_CHAIN = 16


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
        absent: the ranks that have not entered it.
        different: what other ranks have entered instead of it, by rank. They have been told so, and may raise.
        one_is_enough: whether one of the absent ranks would do.
    """

    absent: tuple[int, ...] = ()
    different: Mapping[int, Fingerprint] = field(default_factory=dict)
    one_is_enough: bool = False

    @property
    def lacks(self) -> frozenset[int]:
        """The ranks of which something is needed."""
        return frozenset((*self.absent, *self.different))


def ranks_that_wait_for_ever(positions: Mapping[int, Position]) -> list[int]:
    """Return the ranks that wait for ever. The time grows with the number of ranks and of what they need."""
    needs = needs_of(positions)
    alike: dict[int, list[int]] = {}
    for rank, need in needs.items():
        alike.setdefault(id(need), []).append(rank)
    left = {id(need): min(1, len(need.lacks)) if need.one_is_enough else len(need.lacks) for need in needs.values()}
    needed_by: dict[int, list[int]] = {}
    for waiting in alike.values():
        need = needs[waiting[0]]
        for rank in need.lacks:
            needed_by.setdefault(rank, []).append(id(need))
    free = [rank for rank, position in positions.items() if rank not in needs and not position.over]
    free += [rank for one, ranks in alike.items() if left[one] == 0 for rank in ranks]
    for rank in free:  # grows on the way
        for one in needed_by.get(rank, ()):
            left[one] -= 1
            free += alike[one] if left[one] == 0 else ()
    freed = set(free)
    return [rank for rank in needs if rank not in freed]


def needs_of(positions: Mapping[int, Position]) -> dict[int, Need]:
    """Return what each rank that waits still needs. Ranks that wait in one collective share it."""
    shared: dict[Fingerprint, Need] = {}
    needs = {}
    for rank, position in positions.items():
        waits_in = position.waits_in
        if waits_in is None or position.over:
            continue
        if not waits_in.is_same_on_all_ranks:
            needs[rank] = need_of(waits_in, positions)
            continue
        common = waits_in._replace(rank=-1, source="")
        if common not in shared:
            shared[common] = need_of(waits_in, positions)
        needs[rank] = shared[common]
    return needs


def need_of(fingerprint: Fingerprint, positions: Mapping[int, Position]) -> Need:
    """Return what an operation still needs of other ranks."""
    others = [positions[rank] for rank in fingerprint.others if rank in positions]
    if _may_match_by_chance(fingerprint, positions):
        return Need()
    if fingerprint.peer == ANY_RANK:
        return Need(tuple(other.rank for other in others), one_is_enough=True)
    here = {other.rank: other.entered_with(fingerprint) for other in others}
    different = {rank: theirs for rank, theirs in here.items() if theirs and differences(fingerprint, theirs)}
    absent = tuple(other.rank for other in others if here[other.rank] is None and other.is_behind(fingerprint))
    return Need(absent, different)


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


def wait_text(
    rank: int, positions: Mapping[int, Position], *, chain: bool = False, needs: Mapping[int, Need] | None = None
) -> str:
    """Say what a rank waits for; with `chain`, also what other ranks wait for in turn: each of 16 at most, once.

    Args:
        rank: the rank.
        positions: of all ranks.
        chain: whether to follow the other ranks.
        needs: what ranks need, if it is known (`needs_of`).

    Returns:
        A clause such as "waits in all_reduce #2 float32[4] at train.py:31, which rank 1 never entered: it has
        returned"; "" for a rank that does not wait.
    """
    return _Chain(positions, needs or {}).text(rank, follow=chain)


@dataclass
class _Chain:
    """Tells what a rank waits for, and what the ranks that it waits for wait for in turn."""

    positions: Mapping[int, Position]
    needs: Mapping[int, Need]
    said: set[int] = field(default_factory=set)

    def text(self, rank: int, *, follow: bool) -> str:
        """Return a clause, "" for a rank that does not wait."""
        waits_in = self.positions[rank].waits_in
        if waits_in is None:
            return ""
        self.said.add(rank)
        need = self.needs.get(rank) or need_of(waits_in, self.positions)
        different = [f"where rank {other} called {theirs}" for other, theirs in need.different.items()]
        absent = [_absence(waits_in, ranks, doing) for doing, ranks in self._doing(need, follow=follow).items()]
        return ", ".join([f"waits in {waits_in}", *different, *absent]) + _dropped_handle(waits_in, self.positions)

    def _doing(self, need: Need, *, follow: bool) -> dict[str, list[int]]:
        """Return the ranks that are absent by what they do; ranks that wait in the same do the same."""
        doing: dict[str, list[int]] = {}
        known: dict[Fingerprint, str] = {}
        for rank in need.absent:
            position = self.positions[rank]
            text = f"has {position.over}" if position.over else ""
            if follow and not text and position.waits_in:
                same = position.waits_in._replace(rank=-1)
                if same not in known:
                    is_new = rank not in self.said and len(self.said) < _LONGEST_CHAIN
                    known[same] = self.text(rank, follow=True) if is_new else ""
                text = known[same]
            doing.setdefault(text, []).append(rank)
        return doing


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
