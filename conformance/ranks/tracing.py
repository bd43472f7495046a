"""Records what a rank communicates, and lets results arrive only when the submission waits for them."""

import gc
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from threading import get_ident, get_native_id
from typing import Any

import torch
import torch.distributed as dist

from conformance.protocol.messages import Happening
from conformance.ranks.comm_threads import Alongside, Sleeper
from conformance.scenarios.drawn import Drawn
from conformance.scenarios.scenario import Scenario
from pytest_ddp.observed import (
    BackwardBegan,
    BackwardReturned,
    CollectiveLaunched,
    CollectiveWaited,
    Entry,
    Event,
    Shuffled,
    Spoiled,
    collectives,
    current,
)
from pytest_ddp.operations.fingerprint import Fingerprint
from pytest_ddp.rank.collective_hooks import watch_collectives


def gate(drawn: Drawn) -> AbstractContextManager[None]:
    """If this is gated, let operations complete in a shuffled order, each only when the submission waits for it."""
    return collectives().gate(Shuffled(drawn.seed)) if drawn.gated else nullcontext()


def leading_nowhere(call: Callable[..., None]) -> Callable[..., None]:
    """Return a function that calls another one, which the submission cannot reach from it, as from a closure.

    A generator's frame is what `guard` keeps from the submission.
    """

    def calling() -> Generator[None, tuple[Any, ...], None]:
        while True:
            call(*(yield))

    next(generator := calling())
    return lambda *given: generator.send(given)


def spoiling() -> AbstractContextManager[None]:
    """Let operations that are issued in the block give NaN for good."""
    return collectives().gate(Spoiled())


@contextmanager
def noting(happened: list[Happening], scenario: Scenario) -> Iterator[None]:
    """Append every collective that this process enters in the block; in a gated scenario, its first wait too."""

    def launched(seen: Fingerprint) -> None:
        happened.append(Happening("launched", op=seen.op, bytes=seen.bytes, dtype=seen.dtype, group=seen.group))

    alongside, here, backward = Alongside(happened), get_ident(), Sleeper(get_native_id())
    elsewhere, running = set[int](), set[int]()  # operations that other threads launched; backward passes

    def record(event: Event) -> None:
        if isinstance(event, BackwardBegan):
            running.add(event.backward)
        elif isinstance(event, BackwardReturned):
            running.discard(event.backward)
        elif isinstance(event, CollectiveLaunched):
            happened.append(Happening("launched", number=event.number))
            if get_ident() != here:
                elsewhere.add(event.number)
        elif isinstance(event, CollectiveWaited):
            if get_ident() != here:
                alongside.let_go_on(event.number, running, backward)
            happened.append(Happening("waited", number=event.number))

    if not scenario.gated:
        with watch_collectives(launched):
            yield
        return
    listeners = current.record().listeners
    listeners.append(record)
    try:
        yield
    finally:
        listeners.remove(record)
        entries = {entry.number: entry for entry in collectives()}
        happened[:] = [more for one in happened for more in _in_full(one, entries, elsewhere)]


def unawaited(drawn: Drawn) -> list[str]:
    """Return the operations of a gated scenario or case that the submission never waited for, with their lines."""
    return [str(entry) for entry in collectives().unawaited if entry.bytes] if drawn.gated else []


def alive() -> int:
    """Return how many tensors and handles of operations are alive on this rank.

    Handles are seen in observed groups only: in others, Python does not know them.
    """
    gc.collect()
    return sum(issubclass(type(one), torch.Tensor | dist.Work) for one in gc.get_objects())


def _in_full(one: Happening, entries: dict[int, Entry], elsewhere: Collection[int]) -> Iterator[Happening]:
    """Yield a happening with the facts of its operation, and a wait after the launch of one that blocks.

    The wait of a blocking operation that another thread launched is recorded by itself: backward may go on before it.
    """
    if one.what != "launched" or one.number not in entries:
        yield one
        return
    entry, other = entries[one.number], one.number in elsewhere
    yield replace(one, op=entry.op, bytes=entry.bytes, dtype=entry.dtype, group=entry.group, elsewhere=other)
    if not entry.asynchronous and not other:
        yield Happening("waited", number=one.number)
