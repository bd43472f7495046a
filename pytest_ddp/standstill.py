"""Says who waits for whom when ranks stand still, from the collectives that each of them entered last."""

import re
from collections.abc import Iterator, Sequence

from pytest_ddp.outcome import Died, Ended, Outcome, Raised
from pytest_ddp.world import rank_list

_ENTRY = re.compile(r"(?P<op>\w+) #(?P<sequence>\d+)")
_PEER_LEFT = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Connection refused|connectFullMesh"
    r"|Timed out waiting \d+ms for (recv|send)|remote process exited|NCCL communicator was aborted",
    re.IGNORECASE,
)
# A line that names an exception: as Python writes it, as pytest does, and as either does in an exception group.
_NAMES_LOSS = re.compile(rf"^[E| \t]*[\w.]+: .*(?:{_PEER_LEFT.pattern})", re.IGNORECASE | re.MULTILINE)
_POINT_TO_POINT = ("send", "recv")
# Every rank must bring the same dtype and shape to these; to the others (gather, all_to_all) shapes may differ.
_SAME_EVERYWHERE = ("all_reduce", "broadcast", "reduce", "all_gather_into_tensor", "reduce_scatter_tensor")


def standstill(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a sentence on where the ranks' collectives part, if any of them waited; nothing when they do not part."""
    if any(isinstance(outcome, Ended) and outcome.waits for outcome in outcomes):
        return []  # who waits for whom, and where, is told with each of them
    if not any(_may_have_waited(outcome) for outcome in outcomes):
        return []
    return list(_parting({outcome.rank: _steps(outcome) for outcome in outcomes}))


def peer_left(outcome: Outcome) -> bool:
    """Whether a rank failed only because another one had left the group."""
    return isinstance(outcome, Raised) and _PEER_LEFT.search(outcome.message) is not None


def came_of_peer(outcome: Outcome) -> bool:
    """Whether a rank's exception is that of a peer that had left, or was raised from it or while handling it."""
    return isinstance(outcome, Raised) and (peer_left(outcome) or _NAMES_LOSS.search(outcome.traceback) is not None)


def _may_have_waited(outcome: Outcome) -> bool:
    return isinstance(outcome, Died | Ended) or peer_left(outcome)


def _steps(outcome: Outcome) -> dict[int, str]:
    matches = (_ENTRY.match(entry) for entry in outcome.collectives)
    return {int(m["sequence"]): m.string for m in matches if m and m["op"] not in _POINT_TO_POINT}


def _parting(records: dict[int, dict[int, str]]) -> Iterator[str]:
    for sequence in sorted({number for steps in records.values() for number in steps}):
        here = {rank: steps[sequence] for rank, steps in sorted(records.items()) if sequence in steps}
        if len({_signature(entry) for entry in here.values()}) > 1:
            calls = ", ".join(f"rank {rank} is in {entry}" for rank, entry in here.items())
            yield f"the ranks disagree on collective #{sequence}: {calls}; all must call the same, in the same order"
            return
        late = [rank for rank, steps in sorted(records.items()) if max(steps, default=0) < sequence]
        if late:
            yield f"{rank_list(here)} waited in {next(iter(here.values()))}, which {rank_list(late)} never entered"
            return


def _signature(entry: str) -> str:
    op = entry.partition(" ")[0]
    return entry if op in _SAME_EVERYWHERE else op
