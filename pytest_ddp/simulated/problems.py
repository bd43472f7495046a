"""What can be wrong with the communication of simulated ranks, as values with a text."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with the communication, found in a simulation.

    Attributes:
        text: what it is, in words.
        ranks: the ranks concerned.
    """

    text: str
    ranks: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.text


class Deadlock(Problem):
    """Ranks wait for ever: for one another, or for ranks that have returned."""


class Mismatch(Problem):
    """Ranks call different collectives, or tensors that do not match."""


class TensorWithGaps(Problem):
    """An operation gets a tensor whose elements do not lie side by side; gloo would corrupt it silently."""


class LostMessage(Problem):
    """A message is never received, or a receive never gets one."""


class UnfinishedCollective(Problem):
    """At the end, ranks have launched a collective that other ranks never entered."""


class UseBeforeWait(Problem):
    """A rank reads the result of an operation before it has waited for it."""


class WriteInFlight(Problem):
    """A rank writes to a tensor that an operation in flight reads or writes."""


class SharedTensor(Problem):
    """Two ranks give the same memory to one operation; ranks that are processes share none."""


class ProblemFound(AssertionError):  # noqa: N818  what it says
    """Raised by `Simulation.raise_problem`.

    Attributes:
        problem: what was found.
        choices: the schedule that shows it.
    """

    def __init__(self, problem: Problem, choices: tuple[int, ...] = ()) -> None:
        super().__init__(problem, choices)
        self.problem = problem
        self.choices = choices

    def __str__(self) -> str:
        return f"{type(self.problem).__name__}: {self.problem.text}\nschedule: Recorded({self.choices})"


class PeerLost(RuntimeError):  # noqa: N818  what it says
    """Raised in a rank that waits for a rank that has failed; gloo raises RuntimeError there, too."""


class RankStopped(BaseException):  # ends a rank, and no `except Exception` may catch it
    """Raised in ranks that still run when a simulation ends early."""


class RankKilled(BaseException):  # as RankStopped
    """Raised in a rank that a fault kills, and whenever it then still does something.

    Attributes:
        dead_before: whether the rank was killed earlier.
    """

    def __init__(self, text: str, *, dead_before: bool = False) -> None:
        super().__init__(text)
        self.dead_before = dead_before
