"""One process group on warm ranks: sends a run to every rank and waits for what becomes of it."""

import itertools
import selectors
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import IO, TypeAlias

from pytest_ddp.errors import CollectiveMismatch, ProtocolError
from pytest_ddp.outcomes.failure import RankFailure, details, failures
from pytest_ddp.outcomes.outcome import Deadlocked, Died, Ended, Outcome, Raised, Returned, Stopped, TimedOut
from pytest_ddp.planning.world import World
from pytest_ddp.pool.deadline import Deadline
from pytest_ddp.pool.detector import LOOK_SECONDS, Detector, Refresh, up_to_date
from pytest_ddp.pool.launcher import Launcher
from pytest_ddp.pool.rank_process import RankProcess, answer_outcome, common_fields, death_outcome
from pytest_ddp.pool.rendezvous import reserve_port
from pytest_ddp.pool.simulated_ranks import each_rank
from pytest_ddp.pool.stack_dumps import dump_stacks
from pytest_ddp.protocol.flight_recorder import Reader, key_of
from pytest_ddp.protocol.messages import Answer, Debugging, GetTimeline, Raising, Run, encode
from pytest_ddp.protocol.targets import JOINED

Payloads: TypeAlias = bytes | Sequence[bytes]  # one for all ranks, or one per rank
GRACE_SECONDS = 1.0
# A rank's own group timeout lies far behind our deadline: a hang is ours to report, with every rank's stack.
GROUP_TIMEOUT_MARGIN = 600.0
_MORE_FOR_STARVED = 2.0  # times the timeout of a run, at most, for ranks that could run and get no core
_MOST_LATE_READS = 10_000  # after the deadline, of an answer that is under way
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
        connections: the name of the group whose connections this one takes over, if any.
        refresh: brings the flight recorder up to date, where ranks of other nodes do not write to it themselves.
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
    refresh: Refresh = up_to_date
    disconnected: bool = False
    lost: bool = False
    master_port: int = 0
    connections: str = ""
    _release_port: Callable[[], object] = lambda: None
    _number: int = -1
    _started: float = 0.0
    _timeout: float = 0.0
    _pending: dict[int, RankProcess] = field(default_factory=dict)
    _outcomes: dict[int, Outcome] = field(default_factory=dict)
    _debugged: RankProcess | None = None
    _mismatched: str = ""
    _next_look: float = 0.0

    def assign(self, name: str, processes: list[RankProcess]) -> None:
        """Be a fresh process group of these ranks from the next run on."""
        self.name, self.processes, self.disconnected = name, processes, False
        self._release_port()
        self.master_port, self._release_port = reserve_port(self)

    def take_over(self, name: str, earlier: "RankGroup") -> None:
        """Be a fresh group in the process group of an earlier one that has settled; its ranks need not join."""
        self.assign(name, earlier.processes)
        self.connections = earlier.connections or earlier.name

    @property
    def is_settled(self) -> bool:
        """Whether every rank has returned, and all have entered the same collectives: nothing can go on for long."""
        if self.lost or self.disconnected or len(self.processes) < self.world.processes:
            return False
        if not all(process.is_settled for process in self.processes):
            return False
        entered = {(process.collectives_entered, process.collectives.encoded) for process in self.processes}
        return len(entered) == 1

    def has_entered(self, rank: int) -> bool:
        """Whether a rank has entered this group, also if it has died since."""
        return Reader(self.recorder.fileno(), rank).head().key == key_of(self.name)

    def run(
        self,
        target: str,
        payloads: Payloads = b"",
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
        self, target: str, payloads: Payloads = b"", *, timeout: float, ranks: Collection[int] | None = None
    ) -> None:
        """Begin a run; nothing else may be asked before its `answers` are there."""
        limit = timeout + self.timeout_margin
        encoded: dict[bytes, bytes] = {}  # what is the same for all is encoded once
        for process in self._expect(timeout, ranks):
            process.reset()
            body = payloads if isinstance(payloads, bytes) else payloads[process.rank]
            if body not in encoded:
                encoded[body] = encode(
                    Run(self._number, target, self.name, self.world, limit, self.master_port, body, self.connections)
                )
            process.send(encoded[body])

    def answers(self, *, disconnect: bool = False) -> list[Outcome]:
        """Wait for the outcomes of the run that was begun."""
        outcomes = self._with_mismatch(self._finish(self.grace, disconnect=disconnect))
        if self.world.simulated:
            return each_rank(outcomes, self.world.size)
        quiet = disconnect or not failures(outcomes)  # Hypothesis is shrinking, or all is well: nobody will read it
        return self._with_timelines(outcomes) if self.world.observe and not quiet else outcomes

    def _with_mismatch(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Let a rank fail if what it entered does not match what a rank of another node did, which it could not see."""
        checked = self.world.observe and len(set(self.world.nodes)) > 1 and self.name != self._mismatched
        found = self._detector.mismatch() if checked and not failures(outcomes) else None
        if found is None:
            return outcomes
        self._mismatched = self.name  # it stays in the record
        rank, message = found
        kind = CollectiveMismatch.__name__
        fields = common_fields(self._process_of(rank), self._seconds)
        failed = Raised(**fields, kind=kind, message=message, traceback=f"{kind}: {message}\n")
        return [failed if outcome.rank == rank else outcome for outcome in outcomes]

    def _process_of(self, rank: int) -> RankProcess:
        return next(process for process in self.processes if process.rank == rank)

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

    def _with_timelines(self, outcomes: list[Outcome]) -> list[Outcome]:
        """Add what happened on each rank: those that are left tell it, and the others had posted a part of it."""
        asked = {process.rank for process in self.processes} & set(self._outcomes)
        told = {rank: self._detector.timeline(rank) for rank in self._outcomes.keys() - asked}
        for process in self._expect(_TIMELINE_SECONDS, asked):
            process.send(GetTimeline(self._number))
        answers = self._finish(grace=_TIMELINE_SECONDS, disconnect=False)
        told.update({answer.rank: answer.body.decode() for answer in answers if isinstance(answer, Returned)})
        return [replace(outcome, timeline=told.get(outcome.rank, "")) for outcome in outcomes]

    def _finish(self, grace: float, *, disconnect: bool) -> list[Outcome]:
        self._outcomes = {}
        self.__dict__.pop("_detector", None)
        try:
            self._wait(grace, disconnect=disconnect)
        except BaseException as interruption:  # Ctrl-C, or a guard around us such as pytest-timeout
            ended = self._end(list(self._pending.values()), _INTERRUPTED)
            interruption.ranks = RankFailure(self._in_order(), self.world)  # type: ignore[attr-defined]  # see `run_summary`
            interruption.add_note("\n".join(details(ended)))
            raise
        finally:  # no rank is pending unless we were interrupted, and what still runs must not answer a later run
            self._lose(self._pending.values())
        return self._in_order()

    def _in_order(self) -> list[Outcome]:
        return [outcome for _, outcome in sorted(self._outcomes.items())]

    def _wait(self, grace: float, *, disconnect: bool) -> None:
        """Collect outcomes as they come; end the ranks that are left when the deadline has passed."""
        pending = self._pending
        ends_at, extra = self._started + self._timeout, _MORE_FOR_STARVED * self._timeout
        deadline = Deadline(pending.values(), ends_at, grace, disconnect=disconnect, extra=extra)
        with selectors.DefaultSelector() as channels:
            for process in pending.values():
                channels.register(process, selectors.EVENT_READ, process)
            late_reads = 0
            while pending:
                limit = deadline.seconds
                readable = channels.select(None if limit is None else min(limit, LOOK_SECONDS))
                late_reads = late_reads + 1 if deadline.is_over() else 0
                if late_reads and (not readable or late_reads > _MOST_LATE_READS):  # else an answer may be under way
                    late = Stopped if deadline.any_failed else partial(TimedOut, timeout=self._timeout)
                    self._end(list(pending.values()), late)
                for key, _ in readable:
                    sender: RankProcess = key.data
                    if pending.get(sender.rank) is not sender or self._receive(sender, deadline):
                        channels.unregister(key.fileobj)
                self._look_at_all(deadline)
                if not readable:
                    self._end_deadlocked(deadline)

    def _receive(self, process: RankProcess, deadline: Deadline) -> bool:
        """Receive from a rank that has sent something; return whether its run has ended."""
        outcome = self._outcome(process)
        deadline.set_paused(paused=self._debugged is not None)
        if outcome is None:
            return False
        self._outcomes[process.rank] = outcome
        del self._pending[process.rank]
        deadline.add_outcome(process, outcome)
        return True

    def _look_at_all(self, deadline: Deadline) -> None:
        """Look after every rank, for at most half of the time: many ranks answer one after the other."""
        began = time.monotonic()
        if began < self._next_look:
            return
        for process in self._pending.values():  # a rank that prints in a loop must not fill the disk
            process.output.trim()
        self.disconnected |= deadline.check_waiting()
        ended = time.monotonic()
        self._next_look = ended + (ended - began)

    @cached_property
    def _detector(self) -> Detector:
        return Detector(self.recorder.fileno(), self.world.processes, self.name, self.world.observe, self.refresh)

    def _end_deadlocked(self, deadline: Deadline) -> None:
        """End the ranks that wait for ever, unless other ranks are to break the connections for that."""
        if self._debugged is not None or (deadline.disconnect and deadline.failed_or_skipped):
            return
        found = [self._pending[rank] for rank in self._detector.deadlocked(self._pending, self._outcomes)]
        if not found or (not self.world.observe and any(process.is_busy for process in found)):
            return
        outcomes = self._end(found, Stopped if deadline.failed_or_skipped else Deadlocked)
        for process, outcome in zip(found, outcomes, strict=True):
            deadline.add_outcome(process, outcome)

    def _outcome(self, process: RankProcess) -> Outcome | None:
        try:
            messages = process.read()
        except ProtocolError as error:
            self._lose([process])
            fields = common_fields(process, self._seconds)
            return Raised(**fields, kind="ProtocolError", message=str(error), traceback="")
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

    def _end(self, processes: list[RankProcess], outcome: Callable[..., Ended]) -> list[Ended]:
        """End ranks that still run, after taking their stacks; return their outcomes."""
        self.refresh(now=True)
        halted = {process.rank: process.is_halted for process in processes}
        waits = self._detector.waits(self._pending, self._outcomes)
        known = [{**common_fields(process, self._seconds), **waits[process.rank]} for process in processes]
        for last in (False, True):  # of a rank that was halted last of all: to write them it must run again
            dump_stacks([process for process in processes if halted[process.rank] is last])
        ended = []
        for process, fields in zip(processes, known, strict=True):
            fields |= {"output": process.output.text, "stack": process.stack, "halted": halted[process.rank]}
            ended.append(outcome(**fields))
            self._outcomes[process.rank] = ended[-1]
            del self._pending[process.rank]
            self._lose([process])
        return ended

    def _lose(self, processes: Iterable[RankProcess]) -> None:
        for process in list(processes):
            process.kill()
            self.lost = True
            self._debugging(process, entered=False)
            self.lost_processes.append(process)
            self.processes.remove(process)
