"""Ranks as threads, one of which runs at a time.

The running rank holds the baton. It passes the baton on when it waits or ends, and may pass it on when it launches an
operation. Each rank waits for the baton at a lock of its own. No thread decides for others: who passes the baton on
asks the schedule who gets it.
"""

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol, overload

from pytest_ddp.simulated.problems import Problem, RankStopped
from pytest_ddp.simulated.schedule import Option, Recorded, Schedule

_FEW_RANKS = 64
_LOOK_AGAIN_SECONDS = 0.5
_STACK_OF_FEW = 8 << 20
_STACK_OF_MANY = 512 << 10


class Landing(Protocol):
    """Results that may land on a rank."""

    def option(self) -> Option:
        """Describe the landing."""
        ...

    def land(self) -> None:
        """Write the results."""
        ...


class Rank:
    """One simulated rank: a thread that runs one body after another."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.body: Callable[[], None] | None = None
        self.waits_in: Any = None
        self.at: Any = None
        self.over = ""
        self.on_resume: deque[Callable[[], None]] = deque()
        self.interrupt: BaseException | None = None
        self.guard: Any = None
        self._turn = threading.Lock()
        self._turn.acquire()
        # Gives this rank the baton. No line of Python: Ctrl-C comes before it or after it.
        self.resume: Callable[[], None] = self._turn.release
        self.thread = threading.Thread(target=self._run, name=f"rank {number}", daemon=True)

    def _run(self) -> None:
        while True:
            self._turn.acquire()
            if self.body is None:
                return
            self.body()

    def begin(self, body: Callable[[], None]) -> None:
        """Be ready to run another body."""
        self.body, self.over, self.waits_in, self.at, self.interrupt = body, "", None, None, None
        self.on_resume.clear()

    def pause(self) -> None:
        """Wait for the baton."""
        self._turn.acquire()

    def option(self) -> Option:
        """Describe that this rank goes on."""
        return self.at.option("run") if self.at else Option("run", self.number)


class Options(Sequence[Option]):
    """What may happen next. Options are made when they are read: in large worlds, most schedules read few of them.

    Args:
        rank: the rank that runs, if it can go on.
        ready: the other ranks that can go on.
        landings: the results that may land.
    """

    def __init__(self, rank: Rank | None, ready: Collection[Rank], landings: Collection[Landing]) -> None:
        self._rank = rank
        self._ready = ready
        self._landings = landings

    @cached_property
    def _all(self) -> list[Rank | Landing]:
        return [*([self._rank] if self._rank else []), *self._ready, *self._landings]

    def __len__(self) -> int:
        return (self._rank is not None) + len(self._ready) + len(self._landings)

    def chosen(self, index: int) -> Rank | Landing:
        """Return the rank or the results of an option."""
        if index == 0 and (self._rank or self._ready):
            return self._rank or next(iter(self._ready))
        return self._all[index]

    @overload
    def __getitem__(self, index: int) -> Option: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Option]: ...
    def __getitem__(self, index: int | slice) -> Option | Sequence[Option]:
        if isinstance(index, slice):
            return [one.option() for one in self._all[index]]
        return self._all[index].option()

    def __iter__(self) -> Iterator[Option]:
        return (one.option() for one in self._all)


class Scheduler:
    """Passes the baton between ranks.

    Attributes:
        choices: the decisions of this run so far.
        problem: the first problem that was found in this run.
        stuck: called when no rank can go on and some are not over; it makes a rank ready, or reports a problem.
    """

    def __init__(self) -> None:
        self.ranks: list[Rank] = []
        self.current: Rank | None = None
        self.choices: list[int] = []
        self.problem: Problem | None = None
        self.stopping = False
        self.stuck: Callable[[], None] = lambda: None
        self.switched: Callable[[Rank | None, Rank | None], None] = lambda _old, _new: None
        self.landings: dict[Landing, None] = {}
        self._schedule: Schedule = Recorded()
        self._ready: deque[Rank] = deque()
        self._left = 0
        self._all_over = threading.Lock()

    def start(self, count: int) -> None:
        """Start the threads of the ranks."""
        before = threading.stack_size(_STACK_OF_FEW if count <= _FEW_RANKS else _STACK_OF_MANY)
        try:
            self.ranks = [Rank(number) for number in range(count)]
            for rank in self.ranks:
                rank.thread.start()
        finally:
            threading.stack_size(before)

    def run(self, bodies: Sequence[Callable[[], None]], schedule: Schedule, *, backwards: bool = False) -> None:
        """Run a body in each rank; return when all are over. With `backwards`, the last rank begins."""
        self.choices, self.problem, self.stopping, self._schedule = [], None, False, schedule
        self.landings.clear()
        for rank, body in zip(self.ranks, bodies, strict=True):
            rank.begin(self._body_of(rank, body))
        self._left = len(self.ranks)
        self._ready = deque(reversed(self.ranks) if backwards else self.ranks)
        self._all_over.acquire()
        try:
            self._pass_on(None)
            self._wait()
        except BaseException:  # Ctrl-C
            if self.current or self._left < len(self.ranks):  # the first rank has begun
                self._stop()
            raise
        finally:
            self._all_over.release()

    def _wait(self) -> None:
        """Wait until all ranks are over. A signal that comes just before the lock is acquired does not end that."""
        while not self._all_over.acquire(timeout=_LOOK_AGAIN_SECONDS):
            pass

    def _stop(self) -> None:
        """End all ranks, however often Ctrl-C is pressed."""
        while True:
            self.stopping = True
            self._raise_in_current_rank()
            try:
                return self._wait()
            except BaseException:  # noqa: BLE001,S112  what came first is raised
                continue

    def _raise_in_current_rank(self) -> None:
        """Raise RankStopped in the rank that runs, at its next line of Python."""
        thread = self.current.thread.ident if self.current else None
        if thread is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(RankStopped))

    def end(self) -> None:
        """End the threads; no rank may be running."""
        for rank in self.ranks:
            rank.body = None
            rank.resume()
        for rank in self.ranks:
            rank.thread.join()

    def _body_of(self, rank: Rank, body: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                if not self.stopping:
                    body()
            finally:
                rank.over = rank.over or "returned"
                rank.waits_in = None
                self._left -= 1
                self._pass_on(rank)

        return run

    # What a rank calls

    def step(self) -> None:
        """Let the schedule decide whether the current rank goes on; it has just launched an operation."""
        self.check()
        rank = self.running()
        following = self._choose(rank) if self._ready or self.landings else rank
        if following is not rank:
            self._ready.append(rank)
            self._hand_over(rank, following)

    def wait(self, waits_in: Any, is_ready: Callable[[], bool]) -> None:
        """Let other ranks run until `is_ready()`; whoever makes it true calls `make_ready` for this rank."""
        self.check()
        rank = self.running()
        while not is_ready():
            rank.waits_in = waits_in
            following = self._next()
            if following is not rank:
                self._hand_over(rank, following)
            rank.waits_in = None
            self.check()

    def yield_to_others(self) -> None:
        """Let every other rank that can go on do so before the current one."""
        self.check()
        rank = self.running()
        if self._ready:
            self._ready.append(rank)
            self._hand_over(rank, self._choose(None))

    def make_ready(self, rank: Rank) -> None:
        """A rank that waits can go on."""
        self._ready.append(rank)

    def check(self) -> None:
        """Raise what this rank is to be ended or interrupted with."""
        if self.stopping:
            raise RankStopped
        rank = self.running()
        if rank.interrupt is not None:
            interrupt, rank.interrupt = rank.interrupt, None
            raise interrupt

    def report(self, problem: Problem) -> None:
        """Keep the first problem, and end all ranks."""
        self.problem = self.problem or problem
        self.stopping = True

    def decide(self, options: Sequence[Option]) -> int:
        """Return which of several options the schedule chooses."""
        choice = self._schedule.choose(options)
        self.choices.append(choice)
        return choice

    # Passing the baton

    def running(self) -> Rank:
        """Return the current rank; raise RuntimeError in a thread that is none."""
        if self.current is None or threading.current_thread() is not self.current.thread:
            raise RuntimeError("a thread that is no simulated rank called the backend 'sim'")
        return self.current

    def _hand_over(self, rank: Rank, following: Rank) -> None:
        self.switched(rank, following)
        self.current = following
        following.resume()
        rank.pause()
        while rank.on_resume and not self.stopping:
            rank.on_resume.popleft()()

    def _pass_on(self, rank: Rank | None) -> None:
        """Give the baton to another rank for good."""
        following = self._next() if self._left else None
        self.switched(rank, following)
        self.current = following
        if following is None:
            self._all_over.release()
        else:
            following.resume()

    def _next(self) -> Rank:
        """Return the rank that runs next where the current one cannot."""
        if not self._ready and not self.stopping:
            self.stuck()
        if self.stopping:
            return next(rank for rank in self.ranks if not rank.over)
        return self._choose(None)

    def _choose(self, rank: Rank | None) -> Rank:
        """Let results land and return the rank that runs next, as the schedule decides."""
        while True:
            options = Options(rank, self._ready, self.landings)
            chosen = options.chosen(self.decide(options) if len(options) > 1 else 0)
            if isinstance(chosen, Rank):
                break
            chosen.land()
        if chosen is not rank:
            self._ready.remove(chosen)
        return chosen
