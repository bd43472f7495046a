"""Compares the records of all ranks, over the store that their group was made with: nothing of that is recorded.

All ranks must come here. One that does not leaves the others waiting, which is told as any deadlock is.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import combinations, zip_longest

import torch.distributed as dist
from torch.distributed import Store, distributed_c10d

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.deadlocks.announcer import timeout_of
from pytest_ddp.observed.deadlocks.matching import differences
from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.fingerprint import Fingerprint, notice_of
from pytest_ddp.observed.inspection.expectations import operations
from pytest_ddp.observed.recording.call_site import caller
from pytest_ddp.observed.recording.interfaces import Monitor

_OP, _GROUP = "assert_same_on_all_ranks", "assertions"
_BETWEEN = b"\x1e"


def assert_same(entries: Sequence[Entry], selected: str, monitor: Monitor) -> None:
    """Raise AssertionError, the same on every rank, if some rank's collectives are not those of another one.

    Raises:
        UsageError: when there is no default group any more.
    """
    __tracebackhide__ = True
    if not dist.is_initialized():
        raise UsageError(f"{_OP}() asks the other ranks, and this rank has no process group: the test has destroyed it")
    rank = dist.get_rank()
    gathered = _gather([notice_of(entry, rank).encode() for entry in entries], monitor)
    wrong = next(_partings(gathered), None)
    if wrong:
        raise AssertionError(f"expected the same {operations(selected)} on all ranks; {wrong}")


def _partings(gathered: Sequence[bytes]) -> Iterator[str]:
    """Yield, in the same order on every rank, how ranks differ."""
    for pair in combinations(range(len(gathered)), 2):
        mine, theirs = (gathered[rank] for rank in pair)
        if mine != theirs and (wrong := parting(_notices(mine, pair[0]), _notices(theirs, pair[1]), pair)):
            yield wrong


def _notices(data: bytes, rank: int) -> list[Fingerprint]:
    found = (Fingerprint.decode(text, rank) for text in data.split(_BETWEEN))
    return [notice for notice in found if notice is not None]


def _gather(brought: Sequence[bytes], monitor: Monitor) -> list[bytes]:
    """Return what each rank brings, in rank order."""
    store = distributed_c10d._get_default_store()  # noqa: SLF001  no public way
    rank, size = dist.get_rank(), dist.get_world_size()
    number = store.add(f"{_GROUP}/calls/{rank}", 1)
    meeting = Entry(_OP, _GROUP, tuple(range(size)), number=-number, sequence=number, line=caller()[0])
    keys = [f"{_GROUP}/{number}/{other}" for other in range(size)]
    store.set(keys[rank], _BETWEEN.join(brought).decode())
    monitor.before_operation(meeting)
    monitor.wait_began([meeting], timedelta.max)
    try:
        store.wait(keys, timeout_of(distributed_c10d._get_default_group().group_name, None))  # noqa: SLF001  likewise
        gathered = [store.get(key) for key in keys]
    finally:
        monitor.wait_ended([meeting])
    _clean_up(store, f"{_GROUP}/{number}/read", keys)
    return gathered


def _clean_up(store: Store, counter: str, keys: list[str]) -> None:
    """Let the rank that comes last delete what was stored."""
    if store.add(counter, 1) == len(keys):
        for key in (*keys, counter):
            store.delete_key(key)


# Whether two ranks have entered the same collectives in the same order.


def parting(mine: Sequence[Fingerprint], theirs: Sequence[Fingerprint], ranks: tuple[int, int]) -> str | None:
    """Say where the collectives of two ranks part, those of the groups that both belong to; None if nowhere."""
    here, there = (_shared(notices, ranks) for notices in (mine, theirs))
    for index, (left, right) in enumerate(zip_longest(here, there)):
        if left is None or right is None or left.group != right.group or differences(left, right):
            return _told(
                index, dict(zip(ranks, (left, right), strict=True)), dict(zip(ranks, (here, there), strict=True))
            )
    return None


def _shared(notices: Sequence[Fingerprint], ranks: tuple[int, int]) -> list[Fingerprint]:
    return [notice for notice in notices if notice.peer is None and set(ranks) <= set(notice.ranks)]


def _told(index: int, at: dict[int, Fingerprint | None], all_of: dict[int, list[Fingerprint]]) -> str:
    """Say what each of two ranks has entered at a place where they part."""
    first, second = (f"rank {rank} {_entered(notice, len(all_of[rank]))}" for rank, notice in at.items())
    return f"collective {index + 1} differs: {first}, where {second}"


def _entered(notice: Fingerprint | None, entered: int) -> str:
    return f"has entered no more than {entered}" if notice is None else f"entered {notice}"
