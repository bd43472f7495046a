"""What became of a run on one rank: one value per rank. `failure.raise_for` raises for the root cause among them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pytest_ddp.operations.fingerprint import Fingerprint

SIMULATION_ENDED = "the simulation ended"


@dataclass(frozen=True, kw_only=True)
class _OnRank:
    """What every outcome holds.

    Attributes:
        seconds: how long its run took, or how long the controller waited for it.
        output: what the rank printed in the run, stdout and stderr.
        collectives: the last operations that the rank entered, oldest first; `str()` of each describes it.
        timeline: the operations of an observed rank as a table, if a rank failed.
        schedule: the choices of a simulated run as text, unless the run followed the default schedule.
    """

    rank: int
    seconds: float = 0.0
    output: str = ""
    collectives: Sequence[Fingerprint] = ()
    timeline: str = ""
    schedule: str = ""


@dataclass(frozen=True, kw_only=True)
class Returned(_OnRank):
    """The target returned `body`, or a fault that the test asked for killed the simulated rank before."""

    body: bytes = b""
    killed: bool = False


@dataclass(frozen=True, kw_only=True)
class Raised(_OnRank):
    """The target raised; the exception is sent as text because objects of foreign types may not unpickle."""

    kind: str
    message: str
    traceback: str
    body: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Skipped(_OnRank):
    """The target asked to be skipped."""

    reason: str
    body: bytes = b""


@dataclass(frozen=True, kw_only=True)
class _NoAnswer(_OnRank):
    """The rank did not answer.

    Attributes:
        stack: the Python stacks of its threads, if it could still write them.
        halted: whether a signal such as SIGSTOP had stopped its process.
        waits: where an observed rank waited: "waits in all_reduce #2 at train.py:31, which ...".
        chain: `waits`, followed by where the ranks that it waited for waited themselves.
    """

    stack: str = ""
    halted: bool = False
    waits: str = ""
    chain: str = ""


@dataclass(frozen=True, kw_only=True)
class Died(_NoAnswer):
    """The process ended before it answered.

    Attributes:
        exit_note: the reason that the rank wrote down before it exited, if it did.
        exit_code: its exit code; None if a signal ended it.
        signal: the name of the signal, such as SIGSEGV; None if it exited.
    """

    exit_note: str = ""
    exit_code: int | None = None
    signal: str | None = None


@dataclass(frozen=True, kw_only=True)
class TimedOut(_NoAnswer):
    """The rank was still running at its deadline, and was ended."""

    timeout: float


@dataclass(frozen=True, kw_only=True)
class Stopped(_NoAnswer):
    """The rank was still running after another rank failed or the run was interrupted, and was ended."""

    because: str = "another rank failed"


@dataclass(frozen=True, kw_only=True)
class Deadlocked(_NoAnswer):
    """The rank waited for an operation that could never complete, and was ended."""


Ended: TypeAlias = TimedOut | Stopped | Deadlocked
Failure: TypeAlias = Raised | Died | Ended
Outcome: TypeAlias = Returned | Skipped | Failure
