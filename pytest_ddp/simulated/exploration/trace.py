"""What happened in a run, as steps of which some are dependent; the steps' order matters only where they are.

A **step** is what a rank does from one place where it can be paused to the next (it launches an operation, begins to
wait or to poll, or returns), or the landing of an operation's results on a rank. Two steps are **dependent** if

- a rank makes both;
- a rank asks in one whether an operation is complete, and the other is the landing of its results on this rank;
- both may decide which message a receive from any source gets;
- one is a landing, and in the other its rank returns without having waited for it;
- one is a landing at which a callback of the program runs (`Future.then`), and the other is of the same rank.

A landing also follows the launches of its operation; what a rank does after a wait follows the landing. No other step
depends on a landing: before its wait, a rank touches no tensor that the operation writes, and writes to none that it
reads. A run in which a rank does so has the problem `UseBeforeWait` or `WriteInFlight`, and ends the exploration.

So a run is a partial order of steps. Two runs with equal partial orders are one Mazurkiewicz trace: no rank can tell
them apart.

Source: Mazurkiewicz, "Trace Theory" (1986). Flanagan and Godefroid, "Dynamic Partial-Order Reduction for Model Checking
Software" (POPL 2005): races, and what to run next because of them.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from pytest_ddp.operations.table import RECV
from pytest_ddp.simulated.operation import Launch

Token = tuple[Hashable, ...]
Key = tuple[Hashable, ...]
OPERATIONS = frozenset({"collective", "message"})  # the first word of an operation's key


@dataclass
class Step:
    """A step.

    Attributes:
        token: ("rank", number) or ("land", rank, operation): who makes it.
        reads, writes: the resources that it touches; reads of one resource commute, others do not.
        gives, needs: it happens before each step that needs what it gives.
        text: for people.
    """

    token: Token
    text: str = ""
    reads: set[Key] = field(default_factory=set)
    writes: set[Key] = field(default_factory=set)
    gives: set[Key] = field(default_factory=set)
    needs: set[Key] = field(default_factory=set)


def operation_of(launch: Launch) -> Key:
    """Return the same for all launches that become one operation."""
    call = launch.call
    if not call.operation.point_to_point:
        return ("collective", *launch.key)
    ends = (launch.rank, call.peer) if call.operation.name != RECV else (call.peer, launch.rank)
    return ("message", call.group, *ends, call.tag, launch.sequence)


def box_of(launch: Launch) -> Key | None:
    """Return where a message waits for a receive from any source; None for collectives."""
    call = launch.call
    if not call.operation.point_to_point:
        return None
    return ("box", call.group, launch.rank if call.operation.name == RECV else call.peer, call.tag)


class Trace:
    """The steps of one run, in the order in which they happened."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps
        _close(steps)
        self._before: list[int] = []  # of each step, the steps that happened before it, as bits
        self._direct: list[set[int]] = []  # of each step, the steps that it depends on
        self._races: list[tuple[int, int]] = []
        self._conflicting: set[int] = set()
        self._order()
        self._hashes: list[int] = []
        seen = Counter[Token]()
        for number, step in enumerate(steps):
            seen[step.token] += 1
            causes = frozenset(self._hashes[i] for i in self._direct[number])
            self._hashes.append(hash((step.token, seen[step.token], causes)))

    @property
    def identity(self) -> frozenset[int]:
        """Equal for runs that no rank can tell apart."""
        return frozenset(self._hashes)

    @property
    def operations(self) -> int:
        """How many operations were launched."""
        return len({key for step in self.steps for key in step.gives if key[0] in OPERATIONS})

    def reversals(self) -> Iterator[tuple[Hashable, list[Token]]]:
        """For each race, yield what to run so that the later step comes before the earlier one, with a key of it.

        A landing that no other step is dependent on is left to the default.
        """
        for earlier, later in self._races:
            kept = [i for i in range(later) if i < earlier or not self._before[i] >> earlier & 1]
            kept = [i for i in kept if i != earlier]
            key = (frozenset(self._hashes[i] for i in kept), self.steps[later].token)
            named = [i for i in (*kept, later) if self.steps[i].token[0] != "land" or i in self._conflicting]
            yield key, [self.steps[i].token for i in named]

    def placements(self) -> Iterator[list[Token]]:
        """For each landing and each other place where it could be on its rank, yield what to run so that it is there.

        The other ranks run first, as far as they can, so that the results are ready early.
        """
        for landing in (step for step in self.steps if step.token[0] == "land"):
            _, rank, operation = landing.token
            own = [step for step in self.steps if step.token == ("rank", rank)]
            others = [step.token for step in self.steps if step.token[0] == "rank" and step.token[1] != rank]
            launched = next(place for place, step in enumerate(own, 1) if operation in step.gives)
            waits = (place for place, step in enumerate(own) if ("landed", rank, operation) in step.needs)
            for place in range(launched, next(waits, len(own))):
                yield [*others, *(step.token for step in own[:place]), landing.token]

    def _order(self) -> None:
        last_of: dict[Token, int] = {}
        users: dict[Key, list[tuple[int, bool]]] = defaultdict(list)
        givers: dict[Key, list[int]] = defaultdict(list)
        for number, step in enumerate(self.steps):
            causes = {i for need in step.needs for i in givers[need]}
            if step.token in last_of:
                causes.add(last_of[step.token])
            conflicts = {i for key in step.reads - step.writes for i, writes in users[key] if writes}
            conflicts |= {i for key in step.writes for i, _ in users[key]}
            self._add(number, causes, conflicts - causes)
            last_of[step.token] = number
            for key in step.reads | step.writes:
                users[key].append((number, key in step.writes))
            for key in step.gives:
                givers[key].append(number)

    def _add(self, number: int, causes: set[int], conflicts: set[int]) -> None:
        past = 0
        self._conflicting |= conflicts | {number} if conflicts else set()
        for cause in causes:
            past |= self._before[cause] | 1 << cause
        direct = set(causes)
        for conflict in sorted(conflicts, reverse=True):
            if not past >> conflict & 1:
                self._races.append((conflict, number))
                direct.add(conflict)
                past |= self._before[conflict] | 1 << conflict
        self._before.append(past)
        self._direct.append(direct)


def _close(steps: list[Step]) -> None:
    """Add the dependencies that exist only because of another step of the run."""
    written = {key for step in steps for key in step.writes}
    boxes = {key[1] for key in written if key[0] == "any"}
    for step in steps:
        step.writes |= {key for key in step.gives if key in boxes}
