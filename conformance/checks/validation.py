"""Validates the components' tables of checks when they are imported."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from conformance.checks.aspect import Aspect
from conformance.checks.check import Check
from conformance.strategies.building_blocks import Drawer, parts


def validate(
    component: str,
    checks: Sequence[Check],
    aspects: Sequence[Aspect],
    mistakes: Collection[str],
    *,
    named: Collection[str] = (),
) -> None:
    """Validate the checks and the aspects of a component.

    Args:
        component: its name.
        checks: in their order.
        aspects: what it promises.
        mistakes: the names of all known mistakes.
        named: what else the component's record names as ids of its checks.

    Raises:
        ValueError: a check that is named is not there; a check has no words or the id of an earlier one, requires a
            check that does not come before it or that is extended where it is core itself, or rules out a mistake that
            is not known; a core check is in no aspect or in two, or an aspect names something that is no core check.
    """
    before: dict[str, Check] = {}
    for check in checks:
        for problem in _problems(check, before, mistakes):
            raise ValueError(f"{component}: the check {check.id!r} {problem}")
        before[check.id] = check
    if absent := [id_ for id_ in named if id_ not in before]:
        raise ValueError(f"{component}: there is no check {absent[0]!r}, which its record names")
    core = Counter(check.id for check in checks if check.level == "core")
    marked = Counter(id_ for aspect in aspects for id_ in aspect.checks)
    if wrong := sorted((core - marked) + (marked - core)):
        raise ValueError(f"{component}: each core check must be in one aspect, and no other: {', '.join(wrong)}")


def validate_strategies(checks: Iterable[Check]) -> None:
    """Validate that no two strategies of these checks share a name: the seed of what they draw derives from it.

    Raises:
        ValueError: two strategies have one name.
    """
    named: dict[str, Drawer] = {}
    for check in checks:
        for strategy in parts(check.scenarios):
            name = strategy.__qualname__
            if named.setdefault(name, strategy) is not strategy:
                raise ValueError(f"the check {check.id!r} draws from a second strategy with the name {name!r}")


def _problems(check: Check, before: Mapping[str, Check], mistakes: Collection[str]) -> Iterator[str]:
    if not check.id.strip() or not check.property.strip():
        yield "has no id or no property"
    if check.id in before:
        yield "has the id of an earlier check"
    for required in check.requires:
        if required not in before:
            yield f"requires {required!r}, which does not come before it"
        elif check.level == "core" and before[required].level == "extended":
            yield f"is core and requires {required!r}, which is extended"
    for name in set(check.rules_out).difference(mistakes):
        yield f"rules out {name!r}, which is no known mistake"
