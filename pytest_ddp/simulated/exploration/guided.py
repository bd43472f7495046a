"""A schedule that follows a list of steps, and notes the steps that happen."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch.distributed as dist

from pytest_ddp.simulated.exploration.accesses import AccessMode, InFlight, range_of
from pytest_ddp.simulated.exploration.trace import Step, Token, box_of, operation_of
from pytest_ddp.simulated.network import Event
from pytest_ddp.simulated.operation import Launch
from pytest_ddp.simulated.schedule import Option


class GuidedRun:
    """The schedule of one run, which also watches the run.

    It chooses the first step of `guide` that can be made and has not been made; at the end, the default.

    Args:
        guide: who makes the steps, in order.
        every_landing: whether each landing is dependent on all steps of its rank.

    Attributes:
        steps: the steps that happened.
    """

    def __init__(self, guide: Sequence[Token] = (), *, every_landing: bool = False) -> None:
        self._every_landing = every_landing
        self.steps: list[Step] = []
        self._guide = list(guide)
        self._launches: list[Launch] = []
        self._landing: dict[tuple[Any, ...], Token] = {}
        self._in_flight: dict[int, InFlight] = {}
        self._asked: dict[int, Launch] = {}
        self._next: dict[int, Step] = {}

    def choose(self, options: Sequence[Option]) -> int:
        """Return the index of the option that makes the next step of the guide."""
        if not self._guide:
            return 0
        tokens = [self._token(option) for option in options]
        for token in self._guide:
            if token in tokens:
                return tokens.index(token)
        return 0

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same on a rank, while its accesses are noted."""

        @wraps(function)
        def run(*arguments: Any) -> Any:
            rank = dist.get_rank()
            with AccessMode(self._flying(rank), self._toucher(rank)):
                result = function(*arguments)
            self._end(rank, f"rank {rank} returned")
            return result

        return run

    def watch(self, event: Event, launch: Launch | None) -> None:
        """Note an event of the simulation."""
        if launch is None:
            self._end(event.rank, str(event))
            return
        match event.kind:
            case "landed":
                self._landed(str(event), launch)
            case "waited":
                self._waited(launch)
            case "polled":
                self._polled(launch)
            case "launched":
                self._launched(launch)
                self._end(event.rank, str(event))
            case _:
                self._end(event.rank, str(event))

    def _launched(self, launch: Launch) -> None:
        operation, step = operation_of(launch), self._next_step(launch.rank)
        step.gives.add(operation)
        if (box := box_of(launch)) is not None:
            step.gives.add(box)
            step.writes |= {("any", box)} if launch.call.peer is None else set()
        flying = self._flying(launch.rank)
        for other, _ in flying.touching([*launch.touches]):
            step.reads.add(("out", launch.rank, operation_of(other)))
        flying.add(launch)
        self._launches.append(launch)
        self._landing[_name(launch.option())] = ("land", launch.rank, operation)

    def _polled(self, launch: Launch) -> None:
        self._next_step(launch.rank).writes.add(("asked", launch.rank, operation_of(launch)))
        self._asked[launch.rank] = launch

    def _waited(self, launch: Launch) -> None:
        step, operation = self._next_step(launch.rank), operation_of(launch)
        if self._asked.pop(launch.rank, None) is launch:
            step.reads.add(("out", launch.rank, operation))  # the rank would have gone on without the results, too
        else:
            step.needs.add(("landed", launch.rank, operation))
        self._flying(launch.rank).remove(launch)

    def finish(self) -> list[Step]:
        """Add the landings of results for which no rank has waited; return the steps."""
        for launch in self._launches:
            if launch.ready and not launch.landed:
                self._landed(f"{launch.name} lands on rank {launch.rank} after its end", launch)
        return self.steps

    def _landed(self, text: str, launch: Launch) -> None:
        operation = operation_of(launch)
        step = Step(("land", launch.rank, operation), text)
        step.needs.add(operation)
        step.gives.add(("landed", launch.rank, operation))
        step.writes.add(("out", launch.rank, operation))
        if launch.partner is not None:
            step.needs.add(operation_of(launch.partner))
        outputs = [range_of(one) for one in launch.call.outputs]
        for other, name in self._flying(launch.rank).touching(outputs):
            step.writes.add((name, launch.rank, operation_of(other)))
        self._note(step)

    def _flying(self, rank: int) -> InFlight:
        return self._in_flight.setdefault(rank, InFlight())

    def _toucher(self, rank: int) -> Callable[[Launch, str, bool], None]:
        def touched(launch: Launch, name: str, writes: bool) -> None:  # noqa: FBT001  as `Touched` has it
            step, key = self._next_step(rank), (name, rank, operation_of(launch))
            (step.writes if writes else step.reads).add(key)

        return touched

    def _next_step(self, rank: int) -> Step:
        """Return the step of a rank that is not over; what the rank does until then belongs to it."""
        return self._next.setdefault(rank, Step(("rank", rank)))

    def _end(self, rank: int, text: str) -> None:
        step = self._next_step(rank)
        del self._next[rank]
        step.text = text
        self._note(step)

    def _note(self, step: Step) -> None:
        if self._every_landing:
            (step.writes if step.token[0] == "land" else step.reads).add(("rank", step.token[1]))
        self.steps.append(step)
        if step.token in self._guide:
            self._guide.remove(step.token)

    def _token(self, option: Option) -> Token:
        return ("rank", option.rank) if option.kind == "run" else self._landing.get(_name(option), ())


def _name(option: Option) -> tuple[Any, ...]:
    return option.rank, option.group, option.operation, option.peers
