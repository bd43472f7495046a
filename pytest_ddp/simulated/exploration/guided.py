"""A schedule that follows a list of steps, and notes the steps that happen."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch.distributed as dist

from pytest_ddp.simulated.exploration.trace import Key, Step, Token, box_of, operation_of
from pytest_ddp.simulated.network import Event
from pytest_ddp.simulated.operation import Launch
from pytest_ddp.simulated.schedule import Option


class GuidedRun:
    """The schedule of one run, which also watches the run.

    It chooses the first step of `guide` that can be made and has not been made; at the end, the default.

    Args:
        guide: who makes the steps, in order.
        every_landing: whether each landing is dependent on all steps of its rank.
    """

    def __init__(self, guide: Sequence[Token] = (), *, every_landing: bool = False) -> None:
        self._guide = list(guide)
        self._every_landing = every_landing
        self._steps: list[Step] = []
        self._launches: list[Launch] = []
        self._tokens: dict[tuple[Any, ...], Token] = {}
        self._next: dict[int, Step] = {}
        self._asked: dict[int, Launch] = {}

    def choose(self, options: Sequence[Option]) -> int:
        """Return the index of the option that makes the next step of the guide."""
        if not self._guide:
            return 0
        lands = any(token[0] == "land" for token in self._guide)
        tokens: list[Token] = []
        for option in options:
            if option.kind == "land" and tokens and not lands:
                break  # ranks come first
            tokens.append(self._token(option))
        return next((tokens.index(token) for token in self._guide if token in tokens), 0)

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same on a rank, and lets the rank's last step be noted."""

        @wraps(function)
        def run(*arguments: Any) -> Any:
            result, rank = function(*arguments), dist.get_rank()
            for launch in self._launches:  # the result may be a tensor for which the rank has not waited
                if launch.rank == rank and not launch.waited:
                    self._next_step(rank).reads.add(_results_of(launch))
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
                self._landed(launch, str(event))
            case "waited":
                self._waited(launch)
            case "polled":
                self._polled(launch)
            case "launched":
                self._launched(launch)
                self._end(event.rank, str(event))
            case _:
                self._end(event.rank, str(event))

    def finish(self) -> list[Step]:
        """Add the landings of results for which no rank has waited; return all steps."""
        for launch in self._launches:
            if launch.ready and not launch.landed:
                self._landed(launch, f"{launch.name} lands on rank {launch.rank} after its end")
        return self._steps

    def _launched(self, launch: Launch) -> None:
        step, operation = self._next_step(launch.rank), operation_of(launch)
        step.gives.add(operation)
        if (box := box_of(launch)) is not None:
            step.gives.add(box)
            step.writes |= {("any", box)} if launch.call.peer is None else set()
        self._launches.append(launch)
        self._tokens[_name(launch.option())] = ("land", launch.rank, operation)

    def _polled(self, launch: Launch) -> None:
        self._next_step(launch.rank).writes.add(_asked(launch))
        self._asked[launch.rank] = launch

    def _waited(self, launch: Launch) -> None:
        if self._asked.get(launch.rank) is not launch:  # a rank that polled would have gone on without the results, too
            self._next_step(launch.rank).needs.add(("landed", launch.rank, operation_of(launch)))

    def _landed(self, launch: Launch, text: str) -> None:
        operation = operation_of(launch)
        step = Step(("land", launch.rank, operation), text)
        step.needs.add(operation)
        if launch.partner is not None:
            step.needs.add(operation_of(launch.partner))
        step.gives.add(("landed", launch.rank, operation))
        step.writes |= {_results_of(launch), _asked(launch)}
        if self._every_landing or launch.calls_back:
            step.writes.add(("rank", launch.rank))
        self._note(step)

    def _next_step(self, rank: int) -> Step:
        """Return the step of a rank that is not over; what the rank does until it can be paused belongs to it."""
        return self._next.setdefault(rank, Step(("rank", rank)))

    def _end(self, rank: int, text: str) -> None:
        step = self._next_step(rank)
        del self._next[rank]
        self._asked.pop(rank, None)
        step.text = text
        step.reads.add(("rank", rank))
        self._note(step)

    def _note(self, step: Step) -> None:
        self._steps.append(step)
        if step.token in self._guide:
            self._guide.remove(step.token)

    def _token(self, option: Option) -> Token:
        return self._tokens.get(_name(option), ()) if option.kind == "land" else ("rank", option.rank)


def _results_of(launch: Launch) -> Key:
    return "results", launch.rank, operation_of(launch)


def _asked(launch: Launch) -> Key:
    return "asked", launch.rank, operation_of(launch)


def _name(option: Option) -> tuple[Any, ...]:
    return option.rank, option.group, option.operation, option.peers, option.touches
