"""Makes ranks write their Python stacks and waits until they have, however busy the machine."""

import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_ddp import signalled
from pytest_ddp.member import Member
from pytest_ddp.messages import DUMP_SIGNAL

_SECONDS = 2.0  # for a rank that may never write: it ignores our signal, or blocks it
_BUSY_SECONDS = 10.0  # for one that is seen to be about to, or at it
_POLL_SECONDS = 0.02


def dump_stacks(members: Sequence[Member]) -> None:
    """Make processes write their Python stacks, all at a time; wait until they have."""
    dumps = [Dump(member) for member in members]
    for member in members:
        member.ask_for_stacks()
    asked = time.monotonic()
    while dumps:
        select.select([], [], [], _POLL_SECONDS)
        dumps = [dump for dump in dumps if not dump.is_over()]
        seconds = _BUSY_SECONDS if any(dump.is_under_way for dump in dumps) else _SECONDS
        if time.monotonic() - asked >= seconds:
            return


@dataclass
class Dump:
    """The stacks that one rank is to write.

    Attributes:
        is_under_way: whether the rank was seen to handle the signal, or to be about to, when it was last looked at.
    """

    member: Member
    is_under_way: bool = False
    _before: int = field(init=False)
    _size: int = field(init=False)
    _blocking: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self._before = self._size = self._written()
        threads = signalled.threads(self.member.pid, DUMP_SIGNAL) or {}
        self._blocking = {task for task, thread in threads.items() if thread.blocks}

    def is_over(self) -> bool:
        """Look whether the rank has written all; where the system does not tell, whether it seems to have stopped."""
        last, self._size = self._size, self._written()
        threads = signalled.threads(self.member.pid, DUMP_SIGNAL)  # after the size: who has begun is then seen at it
        if threads is None:
            return self._before < self._size == last
        waiting = any(thread.waits for thread in threads.values())
        taken = any(thread.blocks and task not in self._blocking for task, thread in threads.items())
        self.is_under_way = taken or (waiting and not all(thread.blocks for thread in threads.values()))
        return not threads or (self._size > self._before and not self.is_under_way)

    def _written(self) -> int:
        return os.fstat(self.member.shared.stacks.fileno()).st_size
