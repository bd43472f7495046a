"""The store of simulated ranks: a rank that waits for a key lets the other ranks run."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from pytest_ddp.simulated.scheduler import Rank, Scheduler


class SimulatedStore(dist.Store):
    """Keys and values that all ranks share.

    Attributes:
        values: the value of each key.
        waiting: the keys that ranks wait for.
        prefix: what each key begins with that this store is given.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self.scheduler = scheduler
        self.values: dict[str, bytes] = {}
        self.waiting: dict[Rank, Sequence[str]] = {}
        self.prefix = ""

    @staticmethod
    def with_prefix(prefix: str, store: dist.Store) -> dist.Store:
        """Return a store with the same values, whose keys begin with a prefix: what torch's PrefixStore is for others.

        C++ cannot call all methods of a store in Python, so PrefixStore, which is written in C++, cannot wrap it.
        """
        if not isinstance(store, SimulatedStore):
            return dist.PrefixStore(prefix, store)
        made = SimulatedStore(store.scheduler)
        made.values, made.waiting = store.values, store.waiting
        made.prefix = f"{store.prefix}{prefix}/"
        return made

    def set(self, key: str, value: str | bytes) -> None:
        """Set the value of a key."""
        self.values[self.prefix + key] = _bytes(value)
        for rank in [rank for rank, keys in self.waiting.items() if self._has(keys)]:
            del self.waiting[rank]
            self.scheduler.make_ready(rank)

    def get(self, key: str) -> bytes:
        """Return the value of a key, as soon as it has one."""
        self.wait([key])
        return self.values[self.prefix + key]

    def add(self, key: str, amount: int) -> int:
        """Add to the number of a key, which begins with 0; return the sum."""
        total = int(self.values.get(self.prefix + key, b"0")) + amount
        self.set(key, str(total))
        return total

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a key if it has the expected value, or none where "" is expected; return its value."""
        if self.values.get(self.prefix + key, b"") == _bytes(expected):
            self.set(key, desired)
        return self.values.get(self.prefix + key, _bytes(expected))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys have values."""
        self.scheduler.yield_to_others()
        return self._has([self.prefix + key for key in keys])

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:  # noqa: ARG002  time stands still
        """Let other ranks run until all keys have values."""
        full = [self.prefix + key for key in keys]
        if not self._has(full):
            rank = self.scheduler.running()
            self.waiting[rank] = full
            try:
                self.scheduler.wait(_Keys(full), lambda: self._has(full))
            finally:
                self.waiting.pop(rank, None)

    def delete_key(self, key: str) -> bool:
        """Delete a key; return whether it had a value."""
        return self.values.pop(self.prefix + key, None) is not None

    def get_num_keys(self) -> int:
        """Return how many keys of all prefixes have values."""
        return len(self.values)

    num_keys = get_num_keys

    def _has(self, keys: Sequence[str]) -> bool:
        return all(key in self.values for key in keys)

    def set_timeout(self, timeout: timedelta) -> None:
        """Do nothing: simulated time stands still."""

    def has_extended_api(self) -> bool:
        """Whether it can append and queue; it cannot."""
        return False

    def clone(self) -> Any:
        """Return this store: there is no connection to make anew."""
        return self


class _Keys:
    """What a rank waits for."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys

    def __str__(self) -> str:
        return f"the key {self._keys[0]!r} of the store, which no rank has set"


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
