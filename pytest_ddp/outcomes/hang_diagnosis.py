"""Says which ranks waited for which, from the operations that each of them entered last."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from pytest_ddp.operations.fingerprint import Fingerprint, Key
from pytest_ddp.operations.matching import broken_rule
from pytest_ddp.operations.wait_graph import Position, need_of, wait_text
from pytest_ddp.outcomes.outcome import Died, Ended, Outcome, Raised
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

    Operations that a rank has entered twice under one key are left out: their group was destroyed and made again.
    """
    entered: dict[Key, list[Fingerprint]] = {}
    in_order = sorted(
        ((place, one) for outcome in outcomes for place, one in enumerate(outcome.collectives)),
        key=lambda found: (found[0], found[1].rank),
    )
    for _, one in in_order:
        entered.setdefault(one.key, []).append(one)
    for first, *others in entered.values():
        if len({one.rank for one in (first, *others)}) <= len(others):
            continue
        rule = next(filter(None, (broken_rule(first, other) for other in others)), None)
        if rule:
            called: dict[str, list[int]] = {}
            for one in sorted((first, *others), key=lambda one: one.rank):
                called.setdefault(str(one), []).append(one.rank)
            calls = [f"{rank_list(ranks)} called {operation}" for operation, ranks in called.items()]
            return f"the ranks disagree: {', '.join(calls)}; {rule}"
    return None


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
