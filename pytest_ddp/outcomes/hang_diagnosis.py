"""Says which ranks waited for which, from the operations that each of them entered last."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from pytest_ddp.operations.fingerprint import Fingerprint, Key
from pytest_ddp.operations.matching import broken_rule
from pytest_ddp.operations.wait_graph import Position, need_of, wait_text
from pytest_ddp.outcomes.outcome import Died, Ended, Outcome, Raised, Returned, Skipped
from pytest_ddp.planning.world import rank_list
from pytest_ddp.protocol.flight_recorder import LATEST

_PEER_LEFT = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Connection refused|connectFullMesh"
    r"|Timed out waiting \d+ms for (recv|send)|remote process exited|NCCL communicator was aborted",
    re.IGNORECASE,
)
# A line that names an exception: as Python writes it, as pytest does, and as either does in an exception group.
_NAMES_LOSS = re.compile(rf"^[E| \t]*[\w.]+: .*(?:{_PEER_LEFT.pattern})", re.IGNORECASE | re.MULTILINE)


def describe_hang(outcomes: Sequence[Outcome]) -> list[str]:
    """Return sentences on the operations in which ranks waited for other ranks in vain.

    Nothing is returned if no rank may have waited, or if the outcomes say themselves what ranks waited in.
    """
    if any(isinstance(outcome, Ended) and outcome.waits for outcome in outcomes):
        return []
    positions = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.rank):
        entered = tuple(outcome.collectives)
        positions[outcome.rank] = Position(outcome.rank, entered, all_known=len(entered) < LATEST)
    may_have_waited = [outcome.rank for outcome in outcomes if isinstance(outcome, Died | Ended) or peer_left(outcome)]
    said: dict[str, list[int]] = {}
    for rank in sorted(may_have_waited):
        unmet = next(_unmet(positions[rank], positions), None)
        if unmet is not None:
            waiting = replace(positions[rank], waits_in=unmet)
            said.setdefault(wait_text(rank, {**positions, rank: waiting}), []).append(rank)
    return [f"{rank_list(ranks)} {text.replace('waits', 'waited', 1)}" for text, ranks in said.items()]


def operation_disagreement(outcomes: Sequence[Outcome]) -> str | None:
    """Return a sentence on the first operation in which the ranks do not match; None if there is none.

    A rank that failed may not have completed it: it is the last that the rank entered, or one with a handle. Operations
    that a rank has entered twice under one key are left out: their group was destroyed and made again.
    """
    entered: dict[tuple[Key, tuple[int, ...]], list[Fingerprint]] = {}
    open_on_failed: set[Key] = set()
    for outcome in sorted(outcomes, key=lambda outcome: outcome.rank):
        operations = tuple(outcome.collectives)
        for one in operations:
            if outcome.rank in one.ranks:
                entered.setdefault((one.key, one.ranks), []).append(one._replace(rank=outcome.rank))
        if not isinstance(outcome, Returned | Skipped):
            open_on_failed.update(one.key for one in operations if one.asynchronous or one is operations[-1])
    order = {one.key: place for outcome in outcomes for place, one in enumerate(outcome.collectives)}
    for (key, _), (first, *others) in sorted(entered.items(), key=lambda found: order[found[0][0]]):
        entered_once = len({one.rank for one in (first, *others)}) > len(others)
        rule = next(filter(None, (broken_rule(first, other) for other in others)), None)
        if key in open_on_failed and entered_once and rule:
            return f"the ranks disagree: {_calls((first, *others))}; {rule}"
    return None


def _calls(operations: Sequence[Fingerprint]) -> str:
    called: dict[str, list[int]] = {}
    for one in operations:
        called.setdefault(str(one), []).append(one.rank)
    return ", ".join(f"{rank_list(ranks)} called {operation}" for operation, ranks in called.items())


def _unmet(position: Position, positions: Mapping[int, Position]) -> Iterator[Fingerprint]:
    """Yield the operations of a rank that lack other ranks; of messages, only those that nothing else follows."""
    last_messages = {one.key for one in takewhile(lambda one: one.peer is not None, reversed(position.entered))}
    for one in position.entered:
        need = need_of(one, positions)
        if (need.absent or need.different) and (one.peer is None or one.key in last_messages):
            yield one


def peer_left(outcome: Outcome) -> bool:
    """Whether a rank failed only because another one had left the group."""
    return isinstance(outcome, Raised) and _PEER_LEFT.search(outcome.message) is not None


def caused_by_peer_loss(outcome: Outcome) -> bool:
    """Whether a rank's exception is that of a peer that had left, or was raised from it or while handling it."""
    return isinstance(outcome, Raised) and (peer_left(outcome) or _NAMES_LOSS.search(outcome.traceback) is not None)
