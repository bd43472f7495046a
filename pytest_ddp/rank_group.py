"""One process group on warm ranks: sends a run to every rank and waits for what becomes of it."""

import select
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pytest_ddp.errors import ProtocolError
from pytest_ddp.failure import RankFailure
from pytest_ddp.launcher import Launcher
from pytest_ddp.member import Member
from pytest_ddp.messages import Answer, Debugging, Run
from pytest_ddp.outcome import Died, Outcome, Raised, Returned, Skipped, Stopped, TimedOut
from pytest_ddp.world import World

GRACE_SECONDS = 1.0
# A rank's own group timeout lies far behind our deadline: a hang is ours to report, with every rank's stack.
_GROUP_SLACK_SECONDS = 600.0
_INTERRUPTED = partial(Stopped, because="the run was interrupted")


@dataclass
class RankGroup:
    """The ranks of one process group.

    Attributes:
        gone: the ranks that did not survive a run.
        slack: seconds that the group's own timeout lies behind a run's.
        on_debugging: called when a rank's debugger takes the terminal (True) or gives it back (False). Ranks may stop
            the clock only where somebody listens: a debugger has no deadline, and a hostile rank shall have one.
    """

    world: World
    name: str
    members: list[Member]
    launcher: Launcher
    grace: float = GRACE_SECONDS
    gone: list[Member] = field(default_factory=list)
    slack: float = _GROUP_SLACK_SECONDS
    on_debugging: Callable[[Member, bool], None] | None = None
    _number: int = 0
    _debugged: Member | None = None

    def run(
        self,
        target: str,
        payloads: bytes | Sequence[bytes] = b"",
        *,
        timeout: float,
        ranks: Collection[int] | None = None,
    ) -> list[Outcome]:
        """Run `target` on every rank that is left; return their outcomes in rank order (see `Ranks.run`).

        With `ranks`, only these run, and the others wait for the next run.
        """
        self._number += 1
        started = time.monotonic()
        pending = {member.rank: member for member in self.members if ranks is None or member.rank in ranks}
        for member in pending.values():
            member.start_over()
            body = payloads if isinstance(payloads, bytes) else payloads[member.rank]
            member.send(self._run(target, timeout, body))
        outcomes: dict[int, Outcome] = {}
        try:
            outcomes.update(self._wait(pending, started, timeout))
        except KeyboardInterrupt as interrupt:
            outcomes.update(self._end(pending, time.monotonic() - started, _INTERRUPTED))
            interrupt.ranks = RankFailure(_in_order(outcomes), self.world)  # type: ignore[attr-defined]  # see `interruption`
            raise
        finally:  # pending is empty unless we were interrupted, and then what still runs must not answer a later run
            self._lose(pending.values())
        return _in_order(outcomes)

    def _run(self, target: str, timeout: float, body: bytes) -> Run:
        world = self.world
        group_timeout = timeout + self.slack
        return Run(self._number, target, self.name, world.size, world.backend, world.device, group_timeout, body)

    def _wait(self, pending: dict[int, Member], started: float, timeout: float) -> Iterator[tuple[int, Outcome]]:
        """Yield outcomes as they come; end what is left at the deadline, or when the grace after a failure is over."""
        deadline, failed = started + timeout, False
        while pending:
            patience = None if self._debugged else max(0.0, deadline - time.monotonic())
            readable, _, _ = select.select(list(pending.values()), [], [], patience)
            if not readable:
                yield from self._end(
                    pending, time.monotonic() - started, Stopped if failed else partial(TimedOut, timeout=timeout)
                )
            for member in readable:
                debugged, outcome = self._debugged, self._outcome(member, time.monotonic() - started)
                if debugged and not self._debugged:
                    deadline = time.monotonic() + (self.grace if failed else timeout)
                if outcome is None:
                    continue
                del pending[member.rank]
                yield member.rank, outcome
                if not failed and not isinstance(outcome, Returned | Skipped):
                    failed, deadline = True, min(deadline, time.monotonic() + self.grace)

    def _outcome(self, member: Member, seconds: float) -> Outcome | None:
        try:
            messages = member.read()
        except ProtocolError as error:
            self._lose([member])
            return Raised(rank=member.rank, kind="ProtocolError", message=str(error), traceback=str(error))
        if messages is None:
            return self._death(member, seconds)
        for message in messages:
            if isinstance(message, Debugging):
                self._debugging(member, entered=message.entered)
            if isinstance(message, Answer) and message.number == self._number:
                return _answered(member, message)
        return None

    def _debugging(self, member: Member, *, entered: bool) -> None:
        if self.on_debugging is not None and self._debugged is (None if entered else member):
            self._debugged = member if entered else None
            self.on_debugging(member, entered)

    def _death(self, member: Member, seconds: float) -> Died:
        self._lose([member])
        code = self.launcher.exit_code(member.pid)
        if code is not None and code < 0:
            return Died(**_last_words(member, seconds), stack=member.stack, signal=_signal_name(-code))
        return Died(**_last_words(member, seconds), stack=member.stack, exit_code=code)

    def _end(
        self, pending: dict[int, Member], seconds: float, outcome: Callable[..., TimedOut | Stopped]
    ) -> Iterator[tuple[int, TimedOut | Stopped]]:
        """End every rank that still runs, after taking its stacks."""
        for member in pending.values():
            member.dump_stacks()
        for rank, member in list(pending.items()):
            del pending[rank]
            yield rank, outcome(**_last_words(member, seconds), stack=member.stack)
            self._lose([member])

    def _lose(self, members: Iterable[Member]) -> None:
        for member in list(members):
            member.kill()
            if member is self._debugged:
                self._debugging(member, entered=False)
            self.gone.append(member)
            self.members.remove(member)


def _in_order(outcomes: dict[int, Outcome]) -> list[Outcome]:
    return [outcomes[rank] for rank in sorted(outcomes)]


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
