"""What connects simulated ranks: it matches launches, computes results, and lets them land."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.utils.weak import WeakIdKeyDictionary

from pytest_ddp.observed.recording.call import Call
from pytest_ddp.observed.recording.call_site import caller
from pytest_ddp.simulated.diagnosis import at_the_end, deadlock, gaps, mismatch, shared
from pytest_ddp.simulated.mailbox import Mailbox
from pytest_ddp.simulated.operation import Key, Launch, compute_collective, compute_message, write
from pytest_ddp.simulated.problems import Deadlock, PeerLost, Problem, RankStopped
from pytest_ddp.simulated.reductions import Reduction
from pytest_ddp.simulated.scheduler import Rank, Scheduler
from pytest_ddp.torch_internals import Future

_MOST_IDLE_POLLS = 10_000


@dataclass(frozen=True)
class Event:
    """Something that happened in a simulation.

    Attributes:
        kind: "launched", "landed", "waits" (the rank begins to wait), "waited", "polls" (the rank is about to ask
            whether the operation is complete), "polled" or "failed". The schedule decides after "launched", "waits" and
            "polls", and when a rank is over.
        rank: the rank.
        operation: the operation, such as "all_reduce"; "" for what a rank itself did.
        group: the name of its group.
        sequence: counts the collectives of the group from 1, or the messages between two ranks with one tag.
    """

    kind: str
    rank: int
    operation: str = ""
    group: str = ""
    sequence: int = 0

    def __str__(self) -> str:
        return (
            f"rank {self.rank} {self.kind} {self.operation}#{self.sequence}"
            if self.operation
            else (f"rank {self.rank} {self.kind}")
        )


Watch = Callable[[Event, Launch | None], None]


class Network:
    """The operations of all ranks."""

    def __init__(self, scheduler: Scheduler, reduction: Reduction) -> None:
        self.events: list[Event] = []
        self.scheduler = scheduler
        self._watch: Watch | None = None
        self._reduction = reduction
        self._faults: tuple[Any, ...] = ()
        self._counters: dict[Key, Iterator[int]] = defaultdict(partial(itertools.count, 1))
        self._open: dict[Key, dict[int, Launch]] = {}
        self._mailbox = Mailbox()
        self._idle_polls = 0
        self._ranks_of_groups: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._launches_of: Any = WeakIdKeyDictionary()

    def same_ranks(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Return one object for equal ranks of groups: each rank has a group, and each operation its ranks."""
        return self._ranks_of_groups.setdefault(ranks, ranks)

    def begin(self, faults: Sequence[Any] = (), watch: Watch | None = None) -> None:
        """Begin a run with these faults; `watch` is called with each event.

        Operations count from 1 in each run, unless an earlier run has left some that are not matched yet: so a fault at
        "all_reduce#2" does not depend on what ran before.
        """
        if not self._open and not any(True for _ in self._mailbox):
            self._counters.clear()
        self.events, self._faults, self._watch = [], tuple(faults), watch

    def forget(self) -> None:
        """Forget what was launched and never matched, after a run that failed; ranks count from 1 again."""
        self._counters.clear()
        self._open.clear()
        self._mailbox.clear()
        for rank in self.scheduler.ranks:
            rank.guard.forget()

    # Launching

    def launch(self, call: Call) -> Launch:
        """Launch what a method of a group is called for; return what the rank launched."""
        __tracebackhide__ = True
        self.scheduler.check()
        rank = self._rank
        stream = (call.group, rank.number, call.stream)
        line, called = caller()
        sequence = next(self._counters[stream])
        launch = Launch(rank.number, call, (call.group, sequence), sequence, line, called, land_now=self._land)
        for fault in self._faults:
            fault(launch)
        rank.at = launch
        self._idle_polls = 0
        self._note("launched", launch)
        self._stop_for(gaps(launch))
        rank.guard.launched(launch)
        if call.operation.point_to_point:
            self._match_message(launch)
        else:
            self._match_collective(launch)
        self.scheduler.step()
        return launch

    def _match_collective(self, launch: Launch) -> None:
        launches = self._open.setdefault(launch.key, {})
        first = next(iter(launches.values()), launch)
        launches[launch.rank] = launch
        if first.signature != launch.signature or first.call.ranks is not launch.call.ranks:
            self._stop_for(mismatch(launch, first))
        if len(launches) < len(launch.call.ranks):
            return
        del self._open[launch.key]
        ordered = [launches[rank] for rank in launch.call.ranks]
        self._stop_for(shared(ordered))
        compute_collective(ordered, self._reduction)
        self._become_ready(ordered)

    def _match_message(self, launch: Launch) -> None:
        if launch.call.peer == launch.rank:
            raise ValueError("gloo sends no message from a rank to itself")
        matched = self._mailbox.match(launch)
        if matched is None:
            return
        sent, received = matched
        if sent.contents != received.contents:
            self._stop_for(mismatch(received, sent))
        compute_message(sent, received)
        sent.partner, received.partner = received, sent
        received.source = sent.call.ranks.index(sent.rank)
        self._become_ready(matched)

    def _become_ready(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            launch.ready = True
            self.scheduler.landings[launch] = None
            rank = self.scheduler.ranks[launch.rank]
            if rank.waits_in is launch:
                self.scheduler.make_ready(rank)

    # Waiting

    def wait(self, launch: Launch) -> None:
        """Let other ranks run until the results of a launch of the current rank have landed."""
        __tracebackhide__ = True
        self._rank.at = launch
        self._note("waits", launch)
        if launch.ready:
            self.scheduler.step()
        self.scheduler.wait(launch, lambda: launch.ready)
        self._rank.guard.waited(launch)  # before callbacks of its future use the results
        self._land(launch)
        self._finish(launch)
        if launch.error is not None:
            raise launch.error

    def poll(self, launch: Launch) -> bool:
        """Whether the results have landed; if they may land, they do, unless the schedule says "not yet"."""
        self._note("polls", launch)
        self.scheduler.step() if launch.ready else self.scheduler.yield_to_others()
        self._note("polled", launch)
        self._idle_polls += 1
        if self._idle_polls > _MOST_IDLE_POLLS:
            text = f"rank {launch.rank} asks again and again whether {launch.fingerprint()} is complete"
            self.stop(Deadlock(f"{text}. {_MOST_IDLE_POLLS} times, no rank has done anything else", (launch.rank,)))
        if launch.ready and not launch.landed and self.scheduler.decide([launch.option(), launch.option("leave")]):
            return False
        if launch.ready:
            self._rank.guard.waited(launch)
            self._land(launch)
            self._finish(launch)
        return launch.landed

    def _land(self, launch: Launch) -> None:
        if launch.landed:
            return
        launch.landed = True
        self.scheduler.landings.pop(launch, None)
        write(launch.writes)
        launch.writes = []
        self._note("landed", launch)
        owner = self.scheduler.ranks[launch.rank]
        for function in launch.when_landed:
            function() if owner is self.scheduler.current else owner.on_resume.append(function)

    def _finish(self, launch: Launch) -> None:
        self._idle_polls = 0
        if not launch.waited:
            launch.waited = True
            self._note("waited", launch)

    def complete_with(self, launches: Sequence[Launch], future: Any, results: Callable[[], Any]) -> None:
        """Complete a future, in the thread of its rank, when all launches have landed."""
        self._launches_of[future] = tuple(launches)
        missing = [launch for launch in launches if not launch.landed]

        def landed() -> None:
            if all(launch.landed for launch in launches):
                with self._rank.guard.paused():
                    future.set_result(results())

        for launch in missing:
            launch.when_landed.append(landed)
        if not missing:
            landed()

    def source_of(self, launch: Launch) -> int:
        """Return the rank in the group that a received message came from."""
        return launch.source

    @contextmanager
    def futures_patched(self) -> Iterator[None]:
        """Let a wait in Python for a future be a wait for its operations."""
        originals = {name: getattr(Future, name) for name in ("wait", "then", "done", "add_done_callback")}

        def wait(future: Any) -> Any:
            self._wait_for(future, originals["done"])
            return originals["wait"](future)

        def calling_back(future: Any) -> AbstractContextManager[None]:
            return self._rank.guard.paused() if originals["done"](future) else nullcontext()  # it runs at once, if done

        def then(future: Any, callback: Any) -> Any:
            with calling_back(future):
                following = originals["then"](future, callback)
            self._launches_of[following] = self._calls_back(future)
            return following

        def add_done_callback(future: Any, callback: Any) -> None:
            with calling_back(future):
                originals["add_done_callback"](future, callback)
            self._calls_back(future)

        def done(future: Any) -> bool:
            for launch in self._launches_of.get(future, ()):
                self.poll(launch)
            return bool(originals["done"](future))

        Future.wait, Future.then, Future.done, Future.add_done_callback = wait, then, done, add_done_callback
        try:
            yield
        finally:
            for name, method in originals.items():
                setattr(Future, name, method)

    def _calls_back(self, future: Any) -> tuple[Launch, ...]:
        """Note that a callback of the program runs when the operations of a future land; return them."""
        launches: tuple[Launch, ...] = self._launches_of.get(future, ())
        for launch in launches:
            launch.calls_back = True
        return launches

    def _wait_for(self, future: Any, done: Callable[[Any], bool]) -> None:
        """Wait for the operations of a future; if they are not known, for all that this rank has futures of."""
        if done(future):
            return
        known = self._launches_of.get(future)
        own = known or [one for group in self._launches_of.values() for one in group if one.rank == self._rank.number]
        for launch in own:
            self.wait(launch)

    # What is wrong

    def failed(self, rank: int) -> None:
        """A rank has ended by an exception."""
        self.scheduler.ranks[rank].over = "failed"
        self._add(Event("failed", rank))

    def stop(self, problem: Problem) -> None:
        """Report a problem and end all ranks."""
        self.scheduler.report(problem)
        raise RankStopped

    def _stop_for(self, problem: Problem | None) -> None:
        if problem is not None:
            self.stop(problem)

    def stuck(self) -> None:
        """No rank can go on: end those that wait for ranks that have failed, or report a deadlock."""
        lost, problem = deadlock(self.scheduler.ranks, self._unmatched())
        for rank, text in lost.items():
            rank.interrupt = PeerLost(f"Connection closed by peer: {text}")
            self.scheduler.make_ready(rank)
        if not lost:
            self.scheduler.report(problem)

    def _unmatched(self) -> list[Launch]:
        return [*self._mailbox, *(launch for launches in self._open.values() for launch in launches.values())]

    def check_the_end(self) -> None:
        """Report what was launched and never matched."""
        if self.scheduler.problem or any(rank.over == "failed" for rank in self.scheduler.ranks):
            return
        problem = at_the_end(self._mailbox, self._open.values())
        if problem is not None:
            self.scheduler.report(problem)

    def _note(self, kind: str, launch: Launch) -> None:
        call = launch.call
        self._add(Event(kind, launch.rank, call.operation.name, call.group, launch.sequence), launch)

    def _add(self, event: Event, launch: Launch | None = None) -> None:
        self.events.append(event)
        if self._watch is not None:
            self._watch(event, launch)

    @property
    def _rank(self) -> Rank:
        return self.scheduler.running()
