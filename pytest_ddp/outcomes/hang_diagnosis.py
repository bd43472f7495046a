"""Says who waits for whom when ranks stand still, from the collectives that each of them entered last."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from pytest_ddp.outcomes.outcome import Died, Ended, Outcome, Raised
from pytest_ddp.planning.world import parse_ranks, rank_list
from pytest_ddp.protocol.flight_recorder import SLOT, SLOTS

_ENTRY = re.compile(
    r"(?P<op>\w+) #(?P<sequence>\d+)(?: (?:to|from) rank (?P<peer>\d+))?.*?"
    r"(?: in group (?P<group>\S+)(?: \((?P<ranks>[-\d,]+)\))?)?"
)
_PEER_LEFT = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Connection refused|connectFullMesh"
    r"|Timed out waiting \d+ms for (recv|send)|remote process exited|NCCL communicator was aborted",
    re.IGNORECASE,
)
# A line that names an exception: as Python writes it, as pytest does, and as either does in an exception group.
_NAMES_LOSS = re.compile(rf"^[E| \t]*[\w.]+: .*(?:{_PEER_LEFT.pattern})", re.IGNORECASE | re.MULTILINE)
_MEETS = {"send": "recv", "recv": "send"}
_NEVER = {"send": "received", "recv": "sent"}
# Every rank must bring the same dtype and shape to these; to the others (gather, all_to_all) shapes may differ.
_SAME_EVERYWHERE = ("all_reduce", "broadcast", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor")


@dataclass(frozen=True)
class _Step:
    """An operation that a rank has entered; `ranks` are those of its group, none for all."""

    op: str
    sequence: int
    peer: int | None
    group: str
    ranks: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class _Record:
    """What a rank has entered last, oldest first; of an earlier operation nothing is known if it is not whole."""

    steps: list[_Step]
    is_whole: bool
    may_wait: bool

    def collectives(self, group: str, ranks: tuple[int, ...]) -> dict[int, _Step]:
        """Return the collectives of a group, by number."""
        here = (step for step in self.steps if (step.group, step.ranks) == (group, ranks))
        return {step.sequence: step for step in here if step.op not in _MEETS}

    def last(self, steps: Iterable[_Step]) -> float:
        """Return the number of the last of these steps of the record; infinity if nothing is known of such."""
        return max((step.sequence for step in steps), default=0 if self.is_whole else math.inf)


def standstill(outcomes: Sequence[Outcome]) -> list[str]:
    """Return sentences on where the ranks' operations part, if any of them waited; nothing when they do not part."""
    if any(isinstance(outcome, Ended) and outcome.waits for outcome in outcomes):
        return []  # who waits for whom, and where, is told with each of them
    if not any(_may_have_waited(outcome) for outcome in outcomes):
        return []
    records = {outcome.rank: _record(outcome) for outcome in sorted(outcomes, key=lambda outcome: outcome.rank)}
    return [*_partings(records), *_unmet_messages(records)]


def peer_left(outcome: Outcome) -> bool:
    """Whether a rank failed only because another one had left the group."""
    return isinstance(outcome, Raised) and _PEER_LEFT.search(outcome.message) is not None


def caused_by_peer_loss(outcome: Outcome) -> bool:
    """Whether a rank's exception is that of a peer that had left, or was raised from it or while handling it."""
    return isinstance(outcome, Raised) and (peer_left(outcome) or _NAMES_LOSS.search(outcome.traceback) is not None)


def _may_have_waited(outcome: Outcome) -> bool:
    return isinstance(outcome, Died | Ended) or peer_left(outcome)


def _record(outcome: Outcome) -> _Record:
    entries = list(outcome.collectives)
    is_whole = len(entries) < SLOTS and not any(map(_is_cut, entries))
    return _Record([*filter(None, map(_step, entries))], is_whole, _may_have_waited(outcome))


def _is_cut(entry: str) -> bool:
    """Whether an entry may have been too long for its slot: what it says of its group would be lost."""
    return len(entry.encode()) >= SLOT


def _step(entry: str) -> _Step | None:
    """Return what an entry says; None for one of a group whose ranks it does not tell."""
    found = None if _is_cut(entry) else _ENTRY.fullmatch(entry)
    if found is None or (found["group"] and not found["ranks"]):
        return None
    try:
        ranks = parse_ranks(found["ranks"] or "")
    except ValueError:  # a rank writes what it likes there
        return None
    peer = int(found["peer"]) if found["peer"] else None
    return _Step(found["op"], int(found["sequence"]), peer, found["group"] or "", ranks, entry)


def _partings(records: dict[int, _Record]) -> Iterator[str]:
    """Yield, for each group, where the collectives of its ranks part."""
    groups = {(step.group, step.ranks): None for record in records.values() for step in record.steps}
    for group, ranks in sorted(groups):
        members = {rank: record for rank, record in records.items() if not ranks or rank in ranks}
        steps = {rank: record.collectives(group, ranks) for rank, record in members.items()}
        yield from _parting(members, steps)


def _parting(members: dict[int, _Record], steps: dict[int, dict[int, _Step]]) -> Iterator[str]:
    for sequence in sorted({number for own in steps.values() for number in own}):
        here = {rank: own[sequence].text for rank, own in steps.items() if sequence in own}
        if len({_signature(entry) for entry in here.values()}) > 1:
            calls = ", ".join(f"rank {rank} is in {entry}" for rank, entry in here.items())
            yield f"the ranks disagree on collective #{sequence}: {calls}; all must call the same, in the same order"
            return
        late = [rank for rank, own in steps.items() if members[rank].last(own.values()) < sequence]
        if late:
            yield f"{rank_list(here)} waited in {next(iter(here.values()))}, which {rank_list(late)} never entered"
            return


def _unmet_messages(records: dict[int, _Record]) -> Iterator[str]:
    """Yield, for each rank that waits in messages, the first of them whose peer has done nothing to meet it."""
    for rank, record in records.items():
        waiting = takewhile(lambda step: step.op in _MEETS, reversed(record.steps))
        for step in reversed([*waiting] if record.may_wait else []):
            other = records.get(step.peer) if step.peer is not None else None
            if other is not None and other.last(_meeting(other, step, rank)) < step.sequence:
                yield f"rank {rank} waited in {step.text}, which rank {step.peer} never {_NEVER[step.op]}"
                break


def _meeting(other: _Record, step: _Step, rank: int) -> Iterator[_Step]:
    """Yield the messages of a peer that meet those like this one of a rank; what it takes from any may be one."""
    for one in other.steps:
        if (one.op, one.group, one.ranks) == (_MEETS[step.op], step.group, step.ranks):
            if one.peer == rank:
                yield one
            elif one.peer is None:
                yield step


def _signature(entry: str) -> str:
    op = entry.partition(" ")[0]
    return entry if op in _SAME_EVERYWHERE else op
