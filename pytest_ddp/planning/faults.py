"""Faults as plain data: which rank fails where.

A plan is a list of faults. A place is written as in messages: "all_reduce#7" is the seventh collective of its group,
an all_reduce. On simulated ranks, "write#3" is the third operation on files of a rank, a write; the others are "open"
(to write), "fsync", "replace" and "unlink".

A job may start again after a crash (`run_job`). A fault belongs to one start of it, by default to the first.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault in one start of a job.

    Attributes:
        start: the start, from 0.
    """

    start: int = 0


@dataclass(frozen=True)
class Crash(Fault):
    """A rank is killed when it is about to make an operation. If that is a write to a file, half of it is written.

    Attributes:
        rank: the rank.
        at: the operation.
    """

    rank: int
    at: str


@dataclass(frozen=True)
class Delay(Fault):
    """A rank is late: before an operation, the other ranks run as far as they can.

    Attributes:
        rank: the rank.
        at: the operation.
        turns: how often the others get a turn; on real ranks, the rank sleeps 0.1 seconds for each.
    """

    rank: int
    at: str
    turns: int = 1


@dataclass(frozen=True)
class Partition(Fault):
    """The network falls apart: operations with ranks on several sides fail on each of these ranks.

    Attributes:
        sides: ranks that still reach one another; a rank in none of them is alone.
        at: each rank loses the others when it is about to make this operation.
        until: each rank reaches the others again when it is about to make this operation; "" for never.
    """

    sides: tuple[tuple[int, ...], ...]
    at: str
    until: str = ""


@dataclass(frozen=True)
class Corrupt(Fault):
    """A bit of the first tensor that an operation writes on a rank is flipped, unnoticed.

    Attributes:
        rank: the rank.
        at: the operation.
        bit: the bit, from 0 in the first byte; counted round if the tensor is smaller.
    """

    rank: int
    at: str
    bit: int = 0


@dataclass(frozen=True)
class Rejoin(Fault):
    """A rank that was killed is there again at the next start; without it, the next start has one rank less.

    Attributes:
        rank: the rank.
    """

    rank: int
