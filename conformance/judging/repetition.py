"""Leaves out scenarios that show nothing which others of the same check do not show with as many ranks.

Ten scenarios that are drawn by chance repeat one another. Ranks take most of the time of a grade, so each scenario must
have something of its own: a layer, an option, a number of steps that no other one has in a world of its size. Where the
memory of processes is weighed, which takes as long as fifty other scenarios, the few that show most are enough.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from conformance.scenarios.drawn import Drawn
from conformance.scenarios.scenario import Scenario

_UNTOLD = ("seed", "bucket_size_mb")  # the numbers, and what only some wrappers take: all get the same scenarios
_MOST_WEIGHED = 4


def without_repetition(drawn: Sequence[Drawn]) -> tuple[Drawn, ...]:
    """Return, in their order, scenarios that together show all that these show; cases of other components all stay."""
    if not all(isinstance(one, Scenario) for one in drawn):
        return tuple(drawn)
    weighed = any(cast("Scenario", one).weighed for one in drawn)
    left = {place: {(one.world_size, fact) for fact in _facts(one.to_json())} for place, one in enumerate(drawn)}
    chosen, shown = list[int](), set[tuple[int, str]]()
    while left and not (weighed and len(chosen) == _MOST_WEIGHED):
        best = max(left, key=lambda place: (len(left[place] - shown), -place))
        new = left.pop(best) - shown
        if not new:
            break
        chosen.append(best)
        shown |= new
    return tuple(drawn[place] for place in sorted(chosen))


def _facts(value: Any, name: str = "") -> Iterator[str]:
    """Yield what a scenario has, as texts; `value` is a part of it as JSON."""
    match value:
        case dict():
            for key, part in value.items():
                if key not in _UNTOLD:
                    yield from _facts(part, f"{name}.{key}")
        case list() | tuple():
            yield f"{name} has {len(value)}"
            for part in value:
                yield from _facts(part, f"{name}[]")
        case float() if value not in {0.0, 1.0}:  # such as learning rates
            yield f"{name} is a fraction"
        case _:
            yield f"{name} is {value!r}"
