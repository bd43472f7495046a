"""Draws the scenarios of a check, and the smallest that fails: the only file in which Hypothesis runs."""

import hashlib
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from hypothesis import HealthCheck, Phase, assume, given, reject, settings
from hypothesis import seed as seeded
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.errors import Unsatisfiable

from conformance.judging.vacuity import tells_apart
from conformance.scenarios.claims import EVERYTHING, Claims
from conformance.scenarios.drawn import Drawn
from conformance.scenarios.scenario import Scenario
from conformance.strategies import Bounds
from conformance.strategies.building_blocks import Drawer, parts
from conformance.workload.numbers import data_seed

_REMEMBERED = 1_000
_FEWEST = 3  # examples of each alternative
Found: TypeAlias = tuple[tuple[Drawn, ...], tuple[str, ...]]  # what was drawn, and what was left out, in words


@contextmanager
def nothing_kept() -> Iterator[None]:
    """Let Hypothesis keep its files in a folder that is removed afterwards, not in the caller's."""
    with tempfile.TemporaryDirectory() as folder:
        set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            set_hypothesis_home_dir(None)


@dataclass(frozen=True)
class Spared:
    """What scenarios do without because a component fails there: a check of its own says so, and the rest is judged.

    Attributes:
        equal_start: all ranks have rank 0's weights before wrapping, too.
        in_float32: models are in float32 rather than in float64.
    """

    equal_start: bool = False
    in_float32: bool = False

    def eased(self, drawn: Drawn) -> Drawn:
        """Return a scenario without what is spared; a case stays as it is."""
        if not isinstance(drawn, Scenario):
            return drawn
        drawn = drawn.in_float32 if self.in_float32 else drawn
        return replace(drawn, equal_start=True) if self.equal_start else drawn


NOTHING_SPARED = Spared()


@dataclass(frozen=True)
class Draws:
    """Scenarios or cases of a check: the same ones at every time, for every submission.

    Checks that draw alike with one seed draw the same scenarios, which then run once. Known mistakes in `rules_out`
    must give other numbers than correct code on a scenario, or it is not used; its numbers derive from `secret`.
    Scenarios are made easier by what the component is `spared`. Those with anything that is not claimed are left out:
    with `exact`, all but float64; with `optimizer`, also by the class of the optimizer, which is then the component's.
    """

    scenarios: Drawer
    rules_out: tuple[str, ...]
    bounds: Bounds
    seed: int
    secret: str
    examples: int
    spared: Spared = NOTHING_SPARED
    claims: Claims = EVERYTHING
    exact: bool = False
    optimizer: bool = False

    def all(self) -> tuple[Drawn, ...]:
        """Return them, smaller ones first."""
        return self.found[0]

    @property
    def left_out(self) -> tuple[str, ...]:
        """What was drawn, and is not claimed, in words."""
        return self.found[1]

    @property
    def found(self) -> Found:
        """What was drawn, and what was left out; components with the same scenarios share one drawing."""
        if self not in _found:
            ahead = [found for ask in asked_first if (found := ask(self))]
            _remember(self, ahead[0] if ahead else self._drawn())
        return _found[self]

    @property
    def is_found(self) -> bool:
        """Whether they have been drawn already."""
        return self in _found

    def _drawn(self) -> Found:
        drawn: list[Drawn] = []
        left_out = self.hold(drawn.append)
        return tuple(drawn), left_out

    def hold(self, judge: Callable[[Drawn], None]) -> tuple[str, ...]:
        """Draw them one by one for `judge`; after it raises, look for smaller ones on which it raises, and raise that.

        Each of several alternatives gets its share of the examples. Return what was left out.
        """
        alternatives, fewest = parts(self.scenarios), min(_FEWEST, self.examples)
        left_out = dict[str, None]()
        for part in alternatives:
            own = dict[str, None]()
            try:
                self._hold(part, max(fewest, math.ceil(self.examples / len(alternatives))), judge, own)
            except Unsatisfiable:
                if not own:
                    raise
            left_out |= own
        return tuple(left_out)

    def _hold(self, part: Drawer, examples: int, judge: Callable[[Drawn], None], left_out: dict[str, None]) -> None:
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        @seeded(self._hypothesis_seed(part))
        @given(part(self.bounds))
        def holds(drawn: Drawn) -> None:
            drawn = self._eased(drawn)
            if unclaimed := self.claims.unclaimed(drawn, optimizer=self.optimizer):
                left_out[unclaimed] = None
                reject()
            assume(tells_apart(drawn, data_seed(self.secret, drawn), self.rules_out))
            judge(drawn)

        holds()

    def claimed(self, drawn: Scenario) -> Scenario | None:
        """Return a scenario without what is spared; None if a part of it is not claimed."""
        eased = self._eased(drawn)
        if not isinstance(eased, Scenario) or self.claims.unclaimed(eased, optimizer=self.optimizer):
            return None
        return eased

    def _eased(self, drawn: Drawn) -> Drawn:
        return self.claims.eased(self.spared.eased(drawn), exact=self.exact, optimizer=self.optimizer)

    def _hypothesis_seed(self, part: Drawer) -> int:
        name = f"{self.seed}:{part.__qualname__}:{self.rules_out}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


_found: dict[Draws, Found] = {}
asked_first: list[Callable[[Draws], Found | None]] = []  # who may have drawn them


def _remember(draws: Draws, found: Found) -> None:
    """Keep what was drawn; forget the oldest."""
    _found[draws] = found
    while len(_found) > _REMEMBERED:
        del _found[next(iter(_found))]
