"""One process group on warm ranks: sends a run to every rank and waits for what becomes of it."""

import itertools
import select
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import IO

from pytest_ddp.errors import ProtocolError
from pytest_ddp.outcomes.failure import RankFailure, details, failures
from pytest_ddp.outcomes.outcome import Deadlocked, Died, Ended, Outcome, Raised, Returned, Stopped, TimedOut
from pytest_ddp.planning.world import World
from pytest_ddp.pool.deadline import Deadline
from pytest_ddp.pool.detector import LOOK_SECONDS, Detector
from pytest_ddp.pool.launcher import Launcher
from pytest_ddp.pool.rank_process import RankProcess, answer_outcome, common_fields, death_outcome
from pytest_ddp.pool.rendezvous import reserve_port
from pytest_ddp.pool.stack_dumps import dump_stacks
from pytest_ddp.protocol.messages import Answer, Debugging, GetTimeline, Raising, Run, encode
from pytest_ddp.protocol.targets import JOINED

GRACE_SECONDS = 1.0
# A rank's own group timeout lies far behind our deadline: a hang is ours to report, with every rank's stack.
GROUP_TIMEOUT_MARGIN = 600.0
_INTERRUPTED = partial(Stopped, because="the run was interrupted")
_JOIN_SECONDS = 60.0
_TIMELINE_SECONDS = 10.0
_EXIT_SECONDS = 2.0  # between the end of a rank's connection and that of its process
# An answer to another group's run must never pass for one to ours.
_numbers = itertools.count()


@dataclass
class RankGroup:
    """The ranks of one process group.

    Attributes:
        recorder: the file of the flight recorder.
        lost_processes: the ranks that did not survive a run.
        lost: whether a rank has ever been lost, also if it was replaced since.
        timeout_margin: seconds that the group's own timeout lies behind that of the run which makes it.
        on_debugging: called when a rank's debugger takes the terminal (True) or gives it back (False). Ranks may stop
            the clock only where somebody listens: a debugger has no deadline, and a hostile rank shall have one.
        master_port: a free port for a store that the test makes itself.
        disconnected: whether ranks broke their connections because others waited for them; the group is of no more use.
    """

    world: World
    name: str
    processes: list[RankProcess]
    launcher: Launcher
    recorder: IO[bytes]
    grace: float = GRACE_SECONDS
    lost_processes: list[RankProcess] = field(default_factory=list)
    timeout_margin: float = GROUP_TIMEOUT_MARGIN
    on_debugging: Callable[[RankProcess, bool], None] | None = None
    disconnected: bool = False
    lost: bool = False
    master_port: int = 0
    _number: int = -1
    _started: float = 0.0
    _timeout: float = 0.0
    _pending: dict[int, RankProcess] = field(default_factory=dict)
    _debugged: RankProcess | None = None
    _ended: dict[int, Outcome] = field(default_factory=dict)

    def assign(self, name: str, processes: list[RankProcess]) -> None:
        """Be a fresh process group of these ranks from the next run on."""
        self.name, self.processes, self.disconnected = name, processes, False
        self.master_port = reserve_port(self)

    def run(
        self,
        target: str,
        payloads: bytes | Sequence[bytes] = b"",
        *,
        timeout: float,
        disconnect: bool = False,
        ranks: Collection[int] | None = None,
    ) -> list[Outcome]:
        """Run `target` on every rank that is left; return their outcomes in rank order (see `RankPool.run`).

        With `disconnect`, ranks that failed or skipped break their connections as soon as another one waits for them in
        a collective; that one then fails at once, where it would be stopped after the grace. With `ranks`, only these
        run, and the others wait for the next run.
        """
        self.ask(target, payloads, timeout=timeout, ranks=ranks)
        return self.answers(disconnect=disconnect)

    def ask(
        self,
        target: str,
        payloads: bytes | Sequence[bytes] = b"",
        *,
        timeout: float,
        ranks: Collection[int] | None = None,
    ) -> None:
        """Begin a run; nothing else may be asked before its `answers` are there."""
        encoded: dict[bytes, bytes] = {}  # what is the same for all is encoded once
        for process in self._expect(timeout, ranks):
            process.reset()
            body = payloads if isinstance(payloads, bytes) else payloads[process.rank]
            if body not in encoded:
                encoded[body] = encode(self._run(target, timeout, body))
            process.send(encoded[body])

    def answers(self, *, disconnect: bool = False) -> list[Outcome]:
        """Wait for the outcomes of the run that was begun."""
        outcomes = self._finish(self.grace, disconnect=disconnect)
        quiet = disconnect or not failures(outcomes)  # Hypothesis is shrinking, or all is well: nobody will read it
        return self._with_timelines(outcomes, self._detector) if self.world.observe and not quiet else outcomes

    def start_joining(self) -> None:
        """Ask the ranks to make the process group, without waiting for it."""
        self.ask(JOINED, timeout=_JOIN_SECONDS)

    def join(self) -> list[Outcome]:
        """Wait until every rank has joined; what goes wrong here is no target's fault, and ends all that still wait."""
        return self._finish(grace=0.0, disconnect=False)

    def _expect(self, timeout: float, ranks: Collection[int] | None) -> Collection[RankProcess]:
        """Begin a run of these ranks, by default of all; return them."""
        self._number = next(_numbers)
        self._started, self._timeout = time.monotonic(), timeout
        self._pending = {process.rank: process for process in self.processes if ranks is None or process.rank in ranks}
        return self._pending.values()

    def _with_timelines(self, outcomes: list[Outcome], detector: Detector) -> list[Outcome]:
        """Add what happened on each rank: those that are left tell it, and the others had posted a part of it."""
        asked = {process.rank for process in self.processes} & {outcome.rank for outcome in outcomes}
        told = {outcome.rank: detector.timeline(outcome.rank) for outcome in outcomes if outcome.rank not in asked}
        for process in self._expect(_TIMELINE_SECONDS, asked):
            process.send(GetTimeline(self._number))
        answers = self._finish(grace=_TIMELINE_SECONDS, disconnect=False)
        told.update({answer.rank: answer.body.decode() for answer in answers if isinstance(answer, Returned)})
        return [replace(outcome, timeline=told.get(outcome.rank, "")) for outcome in outcomes]

    def _finish(self, grace: float, *, disconnect: bool) -> list[Outcome]:
        pending, outcomes = self._pending, dict[int, Outcome]()
        try:
            outcomes.update(self._wait(pending, grace, disconnect=disconnect))
        except BaseException as interruption:  # Ctrl-C, or a guard around us such as pytest-timeout
            ended = dict(self._end(pending, _INTERRUPTED))
            outcomes.update(ended)
            interruption.ranks = RankFailure(_in_order(outcomes), self.world)  # type: ignore[attr-defined]  # see `run_summary`
            interruption.add_note("\n".join(details(ended.values())))
            raise
        finally:  # pending is empty unless we were interrupted, and then what still runs must not answer a later run
            self._lose(pending.values())
        return _in_order(outcomes)

    def _run(self, target: str, timeout: float, body: bytes) -> Run:
        world = self.world
        group_timeout = timeout + self.timeout_margin
        gpus = list(world.gpus or range(world.size))
        return Run(
            self._number,
            target,
            self.name,
            world.size,
            world.backend,
            world.device,
            group_timeout,
            gpus,
            world.observe,
            world.has_group,
            self.master_port,
            body,
        )

    def _wait(
        self, pending: dict[int, RankProcess], grace: float, *, disconnect: bool
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield outcomes as they come; end what is left when the deadline has passed."""
        deadline = Deadline(self._started + self._timeout, grace, disconnect=disconnect)
        self._ended = {}
        self.__dict__.pop("_detector", None)
        while pending:
            readable = self._readable(pending.values(), deadline)
            if not readable and deadline.is_over(pending.values()):
                late = Stopped if deadline.any_failed else partial(TimedOut, timeout=self._timeout)
                yield from self._end(pending, late)
            for process in readable:
                outcome = self._outcome(process)
                deadline.set_paused(paused=self._debugged is not None)
                if outcome is None:
                    continue
                del pending[process.rank]
                yield process.rank, outcome
                self._add_outcome(deadline, process, outcome, pending)
            for process in pending.values():
                process.trim_output()
            self.disconnected |= deadline.check_waiting(pending.values())
            if not readable:
                yield from self._end_deadlocked(pending, deadline)

    def _readable(self, pending: Collection[RankProcess], deadline: Deadline) -> list[RankProcess]:
        """Wait until ranks have said something; return them."""
        return select.select(list(pending), [], [], self._pause(deadline))[0]

    def _pause(self, deadline: Deadline) -> float | None:
        """How long to wait for ranks to say something before the next look; None for as long as it takes."""
        if deadline.seconds is None:
            return None
        return min(deadline.seconds, LOOK_SECONDS)

    def _add_outcome(
        self, deadline: Deadline, process: RankProcess, outcome: Outcome, pending: dict[int, RankProcess]
    ) -> None:
        deadline.add_outcome(process, outcome, pending.values())
        self._ended[process.rank] = outcome

    @cached_property
    def _detector(self) -> Detector:
        return Detector(self.recorder.fileno(), self.world.size, self.name, self.world.observe)

    def _end_deadlocked(self, pending: dict[int, RankProcess], deadline: Deadline) -> Iterator[tuple[int, Outcome]]:
        """End the ranks that wait for ever, unless other ranks are to break the connections for that."""
        if self._debugged is not None or (deadline.disconnect and deadline.any_failed_or_skipped):
            return
        found = {rank: pending[rank] for rank in self._detector.deadlocked(pending, self._ended)}
        if not self.world.observe and any(process.is_busy for process in found.values()):
            return
        for rank, outcome in self._end(found, Stopped if deadline.any_failed_or_skipped else Deadlocked):
            process = pending.pop(rank)
            yield rank, outcome
            self._add_outcome(deadline, process, outcome, pending)

    def _outcome(self, process: RankProcess) -> Outcome | None:
        try:
            messages = process.read()
        except ProtocolError as error:
            self._lose([process])
            return Raised(
                **common_fields(process, self._seconds), kind="ProtocolError", message=str(error), traceback=""
            )
        if messages is None:
            return self._death(process)
        for message in messages:
            if isinstance(message, Debugging):
                self._debugging(process, entered=message.entered)
            if isinstance(message, Raising):
                process.is_raising = True
            if isinstance(message, Answer) and message.number == self._number:
                return answer_outcome(process, message)
        return None

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _debugging(self, process: RankProcess, *, entered: bool) -> None:
        if self.on_debugging is not None and self._debugged is (None if entered else process):
            self._debugged = process if entered else None
            self.on_debugging(process, entered)

    def _death(self, process: RankProcess) -> Died:
        seconds, code = self._seconds, self.launcher.exit_code(process.pid, _EXIT_SECONDS)
        still_running = code is None and process.is_running
        if still_running:
            dump_stacks([process])
        elif code is None:  # it has ended, and on a busy machine the news takes longer
            code = self.launcher.exit_code(process.pid)
        self._lose([process])
        return death_outcome(process, seconds, code, still_running=still_running)

    def _end(self, pending: dict[int, RankProcess], outcome: Callable[..., Ended]) -> Iterator[tuple[int, Ended]]:
        """End every rank that still runs, after taking its stacks."""
        halted = {rank: process.is_halted for rank, process in pending.items()}
        waits = self._detector.waits(pending, self._ended) if pending else {}
        known = {rank: {**common_fields(process, self._seconds), **waits[rank]} for rank, process in pending.items()}
        for last in (False, True):  # of a rank that was halted last of all: to write them it must run again
            dump_stacks([process for rank, process in pending.items() if halted[rank] is last])
        for rank, process in list(pending.items()):
            del pending[rank]
            fields = {**known[rank], "output": process.output, "stack": process.stack, "halted": halted[rank]}
            yield rank, outcome(**fields)
            self._lose([process])

    def _lose(self, processes: Iterable[RankProcess]) -> None:
        for process in list(processes):
            process.kill()
            self.lost = True
            self._debugging(process, entered=False)
            self.lost_processes.append(process)
            self.processes.remove(process)


def _in_order(outcomes: dict[int, Outcome]) -> list[Outcome]:
    return [outcomes[rank] for rank in sorted(outcomes)]
