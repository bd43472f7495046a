"""Compares the records of all ranks, which they exchange over the store of their default group.

The exchange is not recorded. A rank that does not take part leaves the others waiting, which is reported like any
other deadlock.
"""

from collections.abc import Sequence
from datetime import timedelta
from itertools import combinations, zip_longest

import torch.distributed as dist

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.fingerprint import fingerprint_of
from pytest_ddp.observed.recording.call_site import caller
from pytest_ddp.observed.recording.record import Record
from pytest_ddp.operations.fingerprint import Fingerprint, Fingerprints
from pytest_ddp.operations.matching import differences
from pytest_ddp.torch_internals import default_group, default_store, group_timeout

_OP, _GROUP = "assert_same_on_all_ranks", "assertions"
_SEPARATOR = b"\x1e"


def assert_same(entries: Sequence[Entry], description: str, record: Record) -> None:
    """Raise the same AssertionError on every rank if two ranks entered different collectives.

    Raises:
        UsageError: if there is no default group.
    """
    __tracebackhide__ = True
    if not dist.is_initialized():
        raise UsageError(f"{_OP}() needs the other ranks, but the test has destroyed this rank's process group")
    rank = dist.get_rank()
    gathered = _all_gather(_SEPARATOR.join(fingerprint_of(entry, rank).encode() for entry in entries), record)
    records = [Fingerprints(tuple(data.split(_SEPARATOR)), rank) for rank, data in enumerate(gathered)]
    pairs = combinations(range(len(records)), 2)
    found = (first_difference(records[a], records[b], (a, b)) for a, b in pairs)
    if difference := next(filter(None, found), None):
        raise AssertionError(f"expected the same {description} on all ranks; {difference}")


def first_difference(mine: Sequence[Fingerprint], theirs: Sequence[Fingerprint], ranks: tuple[int, int]) -> str | None:
    """Describe the first difference between the collectives of two ranks in the groups that both belong to."""
    shared = [_shared(record, ranks) for record in (mine, theirs)]
    for index, pair in enumerate(zip_longest(*shared)):
        left, right = pair
        if left is None or right is None or left.group != right.group or differences(left, right):
            first, second = (
                f"rank {rank} entered {one or f'only {len(record)}'}"
                for rank, one, record in zip(ranks, pair, shared, strict=True)
            )
            return f"collective {index + 1} differs: {first}, {second}"
    return None


def _shared(record: Sequence[Fingerprint], ranks: tuple[int, int]) -> list[Fingerprint]:
    return [one for one in record if one.peer is None and set(ranks) <= set(one.ranks)]


def _all_gather(data: bytes, record: Record) -> list[bytes]:
    """Return the data of each rank, in rank order."""
    store = default_store()
    rank, size = dist.get_rank(), dist.get_world_size()
    number = store.add(f"{_GROUP}/calls/{rank}", 1)
    entry = Entry(_OP, _GROUP, tuple(range(size)), number=-number, sequence=number, line=caller()[0])
    keys = [f"{_GROUP}/{number}/{other}" for other in range(size)]
    store.set(keys[rank], data.decode())
    record.monitor.before_operation(entry)
    timeout = group_timeout(default_group().group_name)
    with record.waiting([entry], timedelta.max):
        store.wait(keys, timeout)
        gathered = [store.get(key) for key in keys]
    counter = f"{_GROUP}/{number}/read"
    if store.add(counter, 1) == size:  # this rank is the last to read them
        for key in (*keys, counter):
            store.delete_key(key)
    return gathered
