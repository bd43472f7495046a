"""What became of a run on one rank: a value, one per rank; raising happens once, at the edge (see `failure`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, kw_only=True)
class _OnRank:
    """What every outcome holds.

    Attributes:
        rank: the rank.
        seconds: how long its run took, or how long it was waited for.
        output: what it printed meanwhile, stdout and stderr.
        collectives: the last collectives that it entered, oldest first, as text.
        timeline: if its collectives were observed and a rank failed: what happened on it, as a table.
    """

    rank: int
    seconds: float = 0.0
    output: str = ""
    collectives: Sequence[str] = ()
    timeline: str = ""

    @property
    def last_collective(self) -> str | None:
        """The collective entered last, as text, or None."""
        return self.collectives[-1] if self.collectives else None


@dataclass(frozen=True, kw_only=True)
class Returned(_OnRank):
    """The target returned `body`."""

    body: bytes = b""


@dataclass(frozen=True, kw_only=True)
class Raised(_OnRank):
    """The target raised; the exception travels as text because objects of foreign types may not survive the trip."""

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
class _Ended(_OnRank):
    """The rank gave no answer: what is known are its Python stacks, if it could still write them.

    Attributes:
        stack: the Python stacks of its threads.
        halted: whether its process was stopped, as by SIGSTOP, rather than running or waiting.
        waits: what it waited in, if its collectives were observed: "waits in all_reduce #2 at train.py:31, which ...".
        chain: the same, going on with what the ranks that it waited for waited in.
    """

    stack: str = ""
    halted: bool = False
    waits: str = ""
    chain: str = ""


@dataclass(frozen=True, kw_only=True)
class Died(_Ended):
    """The process ended before it answered: by `signal` (a name such as SIGSEGV), else with `exit_code`.

    Attributes:
        exit_note: why it left, if it could still say so.
        exit_code: None when a signal ended it.
        signal: None when it left by itself.
    """

    exit_note: str = ""
    exit_code: int | None = None
    signal: str | None = None

    @property
    def how(self) -> str:
        """How the process ended, in words."""
        if self.signal is not None:
            return f"was killed by {self.signal}"
        if self.exit_code is None:
            return self.exit_note or "ended in an unknown way"
        left = f"left with exit code {self.exit_code} before it was done"
        return f"{left}: {self.exit_note}" if self.exit_note else left


@dataclass(frozen=True, kw_only=True)
class TimedOut(_Ended):
    """The rank was still running at its deadline."""

    timeout: float


@dataclass(frozen=True, kw_only=True)
class Stopped(_Ended):
    """The rank was still running some time after something else had happened, and was ended for that reason."""

    because: str = "another rank had failed"


@dataclass(frozen=True, kw_only=True)
class Deadlocked(_Ended):
    """The rank waited for what could never come, and was ended."""


Outcome: TypeAlias = Returned | Raised | Skipped | Died | TimedOut | Stopped | Deadlocked
Ended: TypeAlias = TimedOut | Stopped | Deadlocked
