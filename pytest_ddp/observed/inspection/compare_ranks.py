"""Compares the records of all ranks, which they exchange over the store of their default group.

The exchange is not recorded. A rank that does not take part leaves the others waiting, which is reported like any
other deadlock.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import combinations, zip_longest

import torch.distributed as dist
from torch.distributed import Store

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.events import Entry
from pytest_ddp.observed.fingerprint import fingerprint_of
from pytest_ddp.observed.inspection.expectations import operations_text
from pytest_ddp.observed.recording.call_site import caller
from pytest_ddp.observed.recording.interfaces import Monitor
from pytest_ddp.operations.fingerprint import Fingerprint
from pytest_ddp.operations.matching import differences
from pytest_ddp.torch_internals import default_group, default_store, group_timeout

_OP, _GROUP = "assert_same_on_all_ranks", "assertions"
_SEPARATOR = b"\x1e"


def assert_same(entries: Sequence[Entry], selected: str, monitor: Monitor) -> None:
    """Raise the same AssertionError on every rank if two ranks entered different collectives.

    Raises:
        UsageError: if there is no default group.
    """
    __tracebackhide__ = True
    if not dist.is_initialized():
        raise UsageError(f"{_OP}() needs the other ranks, but the test has destroyed this rank's process group")
    rank = dist.get_rank()
    records = _all_gather([fingerprint_of(entry, rank).encode() for entry in entries], monitor)
    difference = next(_differences(records), None)
    if difference:
        raise AssertionError(f"expected the same {operations_text(selected)} on all ranks; {difference}")


def first_difference(mine: Sequence[Fingerprint], theirs: Sequence[Fingerprint], ranks: tuple[int, int]) -> str | None:
    """Describe the first difference between the collectives of two ranks in the groups that both belong to."""
    shared = [_shared(fingerprints, ranks) for fingerprints in (mine, theirs)]
    for index, pair in enumerate(zip_longest(*shared)):
        left, right = pair
        if left is None or right is None or left.group != right.group or differences(left, right):
            first, second = (
                f"rank {rank} entered {one or f'only {len(fingerprints)}'}"
                for rank, one, fingerprints in zip(ranks, pair, shared, strict=True)
            )
            return f"collective {index + 1} differs: {first}, {second}"
    return None


def _shared(fingerprints: Sequence[Fingerprint], ranks: tuple[int, int]) -> list[Fingerprint]:
    return [one for one in fingerprints if one.peer is None and set(ranks) <= set(one.ranks)]


def _differences(records: Sequence[bytes]) -> Iterator[str]:
    """Yield the first difference of each two ranks, in the same order on every rank."""
    for pair in combinations(range(len(records)), 2):
        mine, theirs = (records[rank] for rank in pair)
        if mine != theirs and (found := first_difference(_decode(mine, pair[0]), _decode(theirs, pair[1]), pair)):
            yield found


def _decode(data: bytes, rank: int) -> list[Fingerprint]:
    found = (Fingerprint.decode(text, rank) for text in data.split(_SEPARATOR))
    return [one for one in found if one is not None]


def _all_gather(fingerprints: Sequence[bytes], monitor: Monitor) -> list[bytes]:
    """Return each rank's fingerprints, joined, in rank order."""
    store = default_store()
    rank, size = dist.get_rank(), dist.get_world_size()
    number = store.add(f"{_GROUP}/calls/{rank}", 1)
    entry = Entry(_OP, _GROUP, tuple(range(size)), number=-number, sequence=number, line=caller()[0])
    keys = [f"{_GROUP}/{number}/{other}" for other in range(size)]
    store.set(keys[rank], _SEPARATOR.join(fingerprints).decode())
    monitor.before_operation(entry)
    monitor.wait_began([entry], timedelta.max)
    try:
        store.wait(keys, group_timeout(default_group().group_name))
        gathered = [store.get(key) for key in keys]
    finally:
        monitor.wait_ended([entry])
    _clean_up(store, f"{_GROUP}/{number}/read", keys)
    return gathered


def _clean_up(store: Store, counter: str, keys: list[str]) -> None:
    """Delete the keys when the last rank has read them."""
    if store.add(counter, 1) == len(keys):
        for key in (*keys, counter):
            store.delete_key(key)
