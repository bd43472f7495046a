"""Draws what checks will draw, and trains on it in one process, before a check asks: in a fork, or before all forks."""

import os
import pickle
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fcntl import F_SETPIPE_SZ, fcntl
from typing import IO, NoReturn, TypeAlias

from conformance.judging.draws import Draws, Found, asked_first
from conformance.oracle.remembered import packed_training, remember_training
from conformance.scenarios.scenario import Scenario
from conformance.workload.numbers import data_seed
from pytest_ddp.pool.parent_death import die_with

_PIPE_BYTES = 2**20  # the fork goes on to draw until so much waits to be asked for
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
    if not wanted:
        yield
        return
    judge, (received, sent) = os.getpid(), os.pipe()
    with suppress(OSError):  # the system allows less
        fcntl(sent, F_SETPIPE_SZ, _PIPE_BYTES)
    if (fork := os.fork()) == 0:
        _serve(wanted, sent, judge)
    os.close(sent)
    with os.fdopen(received, "rb") as stream:
        asked_first.append(_Fork(wanted, stream).found)
        try:
            yield
        finally:
            asked_first.pop()
            os.kill(fork, signal.SIGKILL)
            os.waitpid(fork, 0)


@dataclass
class _Fork:
    """What a fork draws, and sends in the order in which it was wanted."""

    wanted: list[Draws]
    stream: IO[bytes]
    _found: dict[Draws, _Ahead | None] = field(default_factory=dict)

    def found(self, draws: Draws) -> Found | None:
        """Wait until this is drawn; return None if it was not wanted, or cannot be had."""
        while draws not in self._found and draws in self.wanted:
            try:
                self._found[self.wanted[0]] = pickle.load(self.stream)  # noqa: S301  from our own process
                self.wanted.pop(0)
            except (EOFError, pickle.UnpicklingError):  # it was killed
                self.wanted.clear()
        found, trainings = self._found.pop(draws, None) or (None, [])
        for (scenario, seed), packed in zip(_scenarios(draws, found), trainings, strict=True):
            remember_training(scenario, seed, packed)
        return found


def _serve(wanted: Sequence[Draws], sent: int, judge: int) -> NoReturn:
    """Draw in a fork of the judge until that ends."""
    try:
        die_with(judge)
        for number in (signal.SIGINT, signal.SIGTERM):  # it is the judge that decides
            signal.signal(number, signal.SIG_IGN)
        os.closerange(3, sent)
        os.closerange(sent + 1, os.sysconf("SC_OPEN_MAX"))
        with os.fdopen(sent, "wb") as stream:
            for draws in wanted:
                ahead = None
                with suppress(Exception):  # it fails in the judge as well, and is told there
                    ahead = _drawn(draws)
                pickle.dump(ahead, stream)
                stream.flush()
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
