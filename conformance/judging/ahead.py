"""Draws what checks will draw, and trains on it in one process, before a check asks: in a fork, or before all forks."""

import os
import pickle
import select
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

from conformance.judging.draws import Draws, Found, asked_first
from conformance.oracle.remembered import packed_training, remember_training
from conformance.sandbox.zygote import close_all_but
from conformance.sandbox.zygotes import has_known_threads
from conformance.scenarios.scenario import Scenario
from conformance.workload.numbers import data_seed
from pytest_ddp.pool.parent_death import die_with
from pytest_ddp.protocol.shared_files import memory_file

_SIZE_BYTES = 8
_MOST_MILLISECONDS = 60_000  # for what one check draws; it takes some hundred, and is drawn here otherwise
_Ahead: TypeAlias = tuple[Found, list[bytes]]  # what was drawn, and the trainings on scenarios


def draw_ahead(draws: Iterable[Draws]) -> None:
    """Draw these now, so that forks of this process have them; what fails here fails, and is told, in a grade."""
    for one in draws:
        with suppress(Exception):
            _drawn(one)


@contextmanager
def drawing_ahead(draws: Iterable[Draws]) -> Iterator[None]:
    """Draw these meanwhile in a fork, in their order; this process waits for each, once it needs it."""
    wanted = [one for one in dict.fromkeys(draws) if not one.is_found]
    if not wanted or not has_known_threads():
        yield
        return
    judge, (sizes, sent) = os.getpid(), os.pipe()
    with memory_file() as file, os.fdopen(sizes, "rb", buffering=0):
        if (fork := os.fork()) == 0:
            _serve(wanted, file.fileno(), sent, judge)
        os.close(sent)
        asked_first.append(_Fork(wanted, file.fileno(), sizes).found)
        try:
            yield
        finally:
            asked_first.pop()
            os.kill(fork, signal.SIGKILL)
            os.waitpid(fork, 0)


@dataclass
class _Fork:
    """What a fork draws, in the order in which it was wanted: it writes it to a file, and sends the sizes.

    So it need not wait for this process, and ends as soon as all is drawn.
    """

    wanted: list[Draws]
    file: int
    sizes: int
    _at: int = 0
    _found: dict[Draws, _Ahead | None] = field(default_factory=dict)

    def found(self, draws: Draws) -> Found | None:
        """Wait until this is drawn; return None if it was not wanted, or cannot be had."""
        while draws not in self._found and draws in self.wanted:
            size = self._next_size()
            if not size:  # it was killed, or hangs
                self.wanted.clear()
                break
            read, self._at = os.pread(self.file, size, self._at), self._at + size
            self._found[self.wanted.pop(0)] = pickle.loads(read)  # noqa: S301  from our own process
        found, trainings = self._found.pop(draws, None) or (None, [])
        for (scenario, seed), packed in zip(_scenarios(draws, found), trainings, strict=True):
            remember_training(scenario, seed, packed)
        return found

    def _next_size(self) -> int:
        (waiting := select.poll()).register(self.sizes, select.POLLIN)
        return int.from_bytes(os.read(self.sizes, _SIZE_BYTES)) if waiting.poll(_MOST_MILLISECONDS) else 0


def _serve(wanted: Sequence[Draws], file: int, sizes: int, judge: int) -> NoReturn:
    """Draw in a fork of the judge until that ends."""
    try:
        die_with(judge)
        for number in (signal.SIGINT, signal.SIGTERM):  # it is the judge that decides
            signal.signal(number, signal.SIG_IGN)
        close_all_but((file, sizes))
        at = 0
        for draws in wanted:
            ahead = None
            with suppress(Exception):  # it fails in the judge as well, and is told there
                ahead = _drawn(draws)
            data = pickle.dumps(ahead)
            if os.pwrite(file, data, at) < len(data):
                break  # there is no more memory: the judge draws the rest
            os.write(sizes, len(data).to_bytes(_SIZE_BYTES))
            at += len(data)
    finally:
        os._exit(0)


def _drawn(draws: Draws) -> _Ahead:
    found = draws.found
    return found, [packed_training(*one) for one in _scenarios(draws, found)]


def _scenarios(draws: Draws, found: Found | None) -> Iterator[tuple[Scenario, int]]:
    """Yield the scenarios that were drawn, and the integers that their numbers are drawn from."""
    for drawn in found[0] if found else ():
        if isinstance(drawn, Scenario):
            yield drawn, data_seed(draws.secret, drawn)
