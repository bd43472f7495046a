"""One process group on warm ranks: sends a run to every rank and waits for what becomes of it."""

import itertools
import select
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_ddp.errors import ProtocolError
from pytest_ddp.launcher import Launcher
from pytest_ddp.member import Member
from pytest_ddp.messages import Answer, Run
from pytest_ddp.outcome import Died, Outcome, Raised, Returned, Skipped, Stopped, TimedOut
from pytest_ddp.world import World

GRACE_SECONDS = 1.0
# A rank's own group timeout lies far behind our deadline: a hang is ours to report, with every rank's stack.
_GROUP_SLACK_SECONDS = 600.0
_JOIN_SECONDS = 60.0
_HANG_UP_SECONDS = 2.0  # between the end of a rank's connection and that of its process
_RAN_ON = "closed its connection to the test run, ran on, and was ended"
_numbers = itertools.count()  # an answer to another group's run must never pass for one to ours


@dataclass
class RankGroup:
    """The ranks of one process group; `gone` are those that did not survive a run."""

    world: World
    name: str
    members: list[Member]
    launcher: Launcher
    grace: float = GRACE_SECONDS
    gone: list[Member] = field(default_factory=list)
    _number: int = -1
    _started: float = 0.0
    _timeout: float = 0.0

    def run(self, target: str, payloads: bytes | Sequence[bytes] = b"", *, timeout: float) -> list[Outcome]:
        """Run `target` on every rank that is left; return their outcomes in rank order (see `Ranks.run`)."""
        self._begin(target, payloads, timeout)
        return self._finish(self.grace)

    def begin_to_join(self) -> None:
        """Ask the ranks to make the process group, without waiting for it."""
        self._begin("pytest_ddp.worker:joined", b"", _JOIN_SECONDS)

    def join(self) -> list[Outcome]:
        """Wait until every rank has joined; what goes wrong here is no target's fault, and ends all that still wait."""
        return self._finish(grace=0.0)

    def _begin(self, target: str, payloads: bytes | Sequence[bytes], timeout: float) -> None:
        self._number, self._started, self._timeout = next(_numbers), time.monotonic(), timeout
        for member in self.members:
            member.start_over()
            body = payloads if isinstance(payloads, bytes) else payloads[member.rank]
            member.send(self._run(target, timeout, body))

    def _finish(self, grace: float) -> list[Outcome]:
        pending = {member.rank: member for member in self.members}
        try:
            outcomes = dict(self._wait(pending, grace))
        finally:  # pending is empty unless we were interrupted, and then what still runs must not answer a later run
            self._lose(pending.values())
        return [outcomes[rank] for rank in sorted(outcomes)]

    def _run(self, target: str, timeout: float, body: bytes) -> Run:
        world = self.world
        slack = timeout + _GROUP_SLACK_SECONDS
        return Run(self._number, target, self.name, world.size, world.backend, world.device, slack, body)

    def _wait(self, pending: dict[int, Member], grace: float) -> Iterator[tuple[int, Outcome]]:
        """Yield outcomes as they come; end what is left at the deadline, or when the grace after a failure is over."""
        deadline, failed = self._started + self._timeout, False
        while pending:
            readable, _, _ = select.select(list(pending.values()), [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                yield from self._end(pending, time.monotonic() - self._started, None if failed else self._timeout)
            for member in readable:
                outcome = self._outcome(member, time.monotonic() - self._started)
                if outcome is None:
                    continue
                del pending[member.rank]
                yield member.rank, outcome
                if not failed and not isinstance(outcome, Returned | Skipped):
                    failed, deadline = True, min(deadline, time.monotonic() + grace)

    def _outcome(self, member: Member, seconds: float) -> Outcome | None:
        try:
            messages = member.read()
        except ProtocolError as error:
            self._lose([member])
            return Raised(**_last_words(member, seconds), kind="ProtocolError", message=str(error), traceback="")
        if messages is None:
            return self._death(member, seconds)
        for message in messages:
            if isinstance(message, Answer) and message.number == self._number:
                return _answered(member, message)
        return None

    def _death(self, member: Member, seconds: float) -> Died:
        code = self.launcher.exit_code(member.pid, _HANG_UP_SECONDS)
        ran_on = code is None and member.is_running
        if ran_on:
            member.dump_stacks()
        self._lose([member])
        known = {**_last_words(member, seconds), "stack": member.stack, "last_words": member.last_words}
        if ran_on:
            return Died(**{**known, "last_words": _RAN_ON})
        if code is not None and code < 0:
            return Died(**known, signal=_signal_name(-code))
        return Died(**known, exit_code=code)

    def _end(
        self, pending: dict[int, Member], seconds: float, timeout: float | None
    ) -> Iterator[tuple[int, TimedOut | Stopped]]:
        """End every rank that still runs, after taking its stacks; `timeout` is None when a peer's failure is why."""
        halted = {rank: member.is_halted for rank, member in pending.items()}
        known = {rank: _last_words(member, seconds) for rank, member in pending.items()}
        for member in sorted(pending.values(), key=lambda member: halted[member.rank]):
            member.dump_stacks()  # of a rank that was halted last of all: to write them it must run again
        for rank, member in list(pending.items()):
            del pending[rank]
            words = {**known[rank], "output": member.output, "stack": member.stack, "halted": halted[rank]}
            yield rank, Stopped(**words) if timeout is None else TimedOut(**words, timeout=timeout)
            self._lose([member])

    def _lose(self, members: Iterable[Member]) -> None:
        for member in list(members):
            member.kill()
            self.gone.append(member)
            self.members.remove(member)


def _last_words(member: Member, seconds: float) -> dict[str, Any]:
    return {
        "rank": member.rank,
        "seconds": seconds,
        "output": member.output,
        "collectives": member.collectives,
    }


def _answered(member: Member, answer: Answer) -> Outcome:
    words = _last_words(member, answer.seconds)
    if answer.outcome == "returned":
        return Returned(**words, body=answer.body)
    if answer.outcome == "skipped":
        return Skipped(**words, reason=answer.message, body=answer.body)
    return Raised(**words, kind=answer.kind, message=answer.message, traceback=answer.traceback, body=answer.body)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
