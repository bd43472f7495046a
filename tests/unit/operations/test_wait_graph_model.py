"""Ranks that run random programs, step by step: nobody is ever called stuck who can go on, and in the end all are.

The programs block in every operation; a step lets one rank enter its next operation, or leave one that is complete.
"""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddp.operations.fingerprint import ANY_RANK, Fingerprint, Key
from pytest_ddp.operations.table import RECV, SEND
from pytest_ddp.operations.wait_graph import Position, ranks_that_wait_for_ever

SIZE = 3
GROUPS = {"0": (0, 1, 2), "a": (0, 1), "b": (1, 2), "c": (0, 2)}


@dataclass
class Rank:
    rank: int
    program: list[tuple[str, int | str]]
    entered: list[Fingerprint] = field(default_factory=list)
    waits: bool = False
    counts: Counter[Key] = field(default_factory=Counter)

    @property
    def over(self) -> bool:
        return not self.waits and len(self.entered) == len(self.program)

    def enter(self) -> Fingerprint:
        op, whom = self.program[len(self.entered)]
        peer = whom if isinstance(whom, int) else None
        group = "0" if isinstance(whom, int) else whom
        notice = Fingerprint(op, group, GROUPS[group], 0, self.rank, peer=peer)
        self.counts[notice.op, *notice.stream] += 1
        self.entered.append(notice._replace(number=self.counts[notice.op, *notice.stream]))
        self.waits = True
        return self.entered[-1]


@dataclass
class RankPool:
    ranks: list[Rank]
    complete: set[tuple[int, int]] = field(default_factory=set)  # of a rank and the index of its operation

    def able(self) -> list[Rank]:
        return [r for r in self.ranks if not r.over and (not r.waits or (r.rank, len(r.entered)) in self.complete)]

    def step(self, rank: Rank) -> None:
        if rank.waits:
            rank.waits = False
        else:
            self._meet(rank, rank.enter())

    def _meet(self, rank: Rank, notice: Fingerprint) -> None:
        """Complete what becomes complete now that a rank has entered an operation."""
        if notice.peer is None:
            there = [other for other in self._pending() if other.entered[-1].key == notice.key]
            if len(there) == len(notice.ranks):
                self._complete(*there)
            return
        for other in self._pending():
            if _takes(notice, other.entered[-1]) or _takes(other.entered[-1], notice):
                self._complete(rank, other)
                return

    def _pending(self) -> list[Rank]:
        return [rank for rank in self.ranks if rank.waits and (rank.rank, len(rank.entered)) not in self.complete]

    def _complete(self, *ranks: Rank) -> None:
        self.complete |= {(rank.rank, len(rank.entered)) for rank in ranks}

    def stuck(self) -> set[int]:
        return set(ranks_that_wait_for_ever({rank.rank: _position(rank) for rank in self.ranks}))


def _takes(recv: Fingerprint, send: Fingerprint) -> bool:
    return (recv.op, send.op, send.peer) == (RECV, SEND, recv.rank) and recv.peer in {send.rank, ANY_RANK}


def _position(rank: Rank) -> Position:
    waits_in = rank.entered[-1] if rank.waits else None
    return Position(rank.rank, tuple(rank.entered), waits_in, "returned" if rank.over else "")


def operations(rank: int, *, anyone: bool) -> st.SearchStrategy[tuple[str, int | str]]:
    others = [other for other in range(SIZE) if other != rank]
    groups = [name for name, ranks in GROUPS.items() if rank in ranks]
    sources = [*others, ANY_RANK] if anyone else others
    return st.one_of(
        st.tuples(st.just("all_reduce"), st.sampled_from(groups)),
        st.tuples(st.just(SEND), st.sampled_from(others)),
        st.tuples(st.just(RECV), st.sampled_from(sources)),
    )


def worlds(*, anyone: bool) -> st.SearchStrategy[list[list[tuple[str, int | str]]]]:
    return st.tuples(*(st.lists(operations(rank, anyone=anyone), max_size=5) for rank in range(SIZE))).map(list)


def run(programs, choices) -> tuple[set[int], set[int], set[int]]:
    """Run to the end; return who was ever called stuck, who waits in the end, and who is called stuck then."""
    world = RankPool([Rank(rank, program) for rank, program in enumerate(programs)])
    called = world.stuck()
    while able := world.able():
        world.step(able[next(choices) % len(able)])
        called |= world.stuck()
    return called, {rank.rank for rank in world.ranks if rank.waits}, world.stuck()


def endless(drawn: list[int]):
    yield from drawn
    while True:
        yield 0


CHOICES = st.lists(st.integers(0, 5), max_size=40)


@settings(max_examples=200)
@given(worlds(anyone=False), CHOICES)
def test_who_waits_for_ever_is_called_stuck_and_nobody_else(programs, choices):
    called, waiting, in_the_end = run(programs, endless(choices))
    assert called == waiting == in_the_end


@settings(max_examples=200)
@given(worlds(anyone=True), CHOICES)
def test_with_receives_from_anyone_too_nobody_is_called_stuck_who_goes_on(programs, choices):
    called, waiting, _ = run(programs, endless(choices))
    assert called <= waiting
