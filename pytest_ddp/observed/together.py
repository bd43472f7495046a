"""Compares the records of all ranks, over the store that their group was made with: nothing of that is recorded.

All ranks must come here. One that does not leaves the others waiting, which is told as any deadlock is.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import combinations

import torch.distributed as dist
from torch.distributed import Store, distributed_c10d

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.comparing import parting
from pytest_ddp.observed.complaints import operations
from pytest_ddp.observed.entry import Entry
from pytest_ddp.observed.location import caller
from pytest_ddp.observed.notice import Notice
from pytest_ddp.observed.posted import notice_of
from pytest_ddp.observed.timeouts import timeout_of
from pytest_ddp.observed.watch import Watch

_OP, _GROUP = "assert_same_on_all_ranks", "assertions"
_BETWEEN = b"\x1e"


def assert_same(entries: Sequence[Entry], selected: str, watch: Watch) -> None:
    """Raise AssertionError, the same on every rank, if some rank's collectives are not those of another one.

    Raises:
        UsageError: when there is no default group any more.
    """
    __tracebackhide__ = True
    if not dist.is_initialized():
        raise UsageError(f"{_OP}() asks the other ranks, and this rank has no process group: the test has destroyed it")
    rank = dist.get_rank()
    gathered = _gather([notice_of(entry, rank).encode() for entry in entries], watch)
    wrong = next(_partings(gathered), None)
    if wrong:
        raise AssertionError(f"expected the same {operations(selected)} on all ranks; {wrong}")


def _partings(gathered: Sequence[bytes]) -> Iterator[str]:
    """Yield, in the same order on every rank, how ranks differ."""
    for pair in combinations(range(len(gathered)), 2):
        mine, theirs = (gathered[rank] for rank in pair)
        if mine != theirs and (wrong := parting(_notices(mine, pair[0]), _notices(theirs, pair[1]), pair)):
            yield wrong


def _notices(data: bytes, rank: int) -> list[Notice]:
    found = (Notice.decode(text, rank) for text in data.split(_BETWEEN))
    return [notice for notice in found if notice is not None]


def _gather(brought: Sequence[bytes], watch: Watch) -> list[bytes]:
    """Return what each rank brings, in rank order."""
    store = distributed_c10d._get_default_store()  # noqa: SLF001  no public way
    rank, size = dist.get_rank(), dist.get_world_size()
    number = store.add(f"{_GROUP}/calls/{rank}", 1)
    meeting = Entry(_OP, _GROUP, tuple(range(size)), number=-number, sequence=number, line=caller()[0])
    keys = [f"{_GROUP}/{number}/{other}" for other in range(size)]
    store.set(keys[rank], _BETWEEN.join(brought).decode())
    watch.entering(meeting)
    watch.blocked([meeting], timedelta.max)
    try:
        store.wait(keys, timeout_of(distributed_c10d._get_default_group().group_name, None))  # noqa: SLF001  likewise
        gathered = [store.get(key) for key in keys]
    finally:
        watch.unblocked([meeting])
    _clean_up(store, f"{_GROUP}/{number}/read", keys)
    return gathered


def _clean_up(store: Store, counter: str, keys: list[str]) -> None:
    """Let the rank that comes last delete what was stored."""
    if store.add(counter, 1) == len(keys):
        for key in (*keys, counter):
            store.delete_key(key)
