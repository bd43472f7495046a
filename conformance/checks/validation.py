"""Validates the components' tables of checks when they are imported."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from conformance.checks.check import Check
from conformance.strategies.building_blocks import Drawer, parts


def validate(component: str, checks: Sequence[Check], mistakes: Collection[str]) -> None:
    """Validate the checks of a component.

    Args:
        component: its name, for messages.
        checks: its checks, in the order in which they run.
        mistakes: the names of all known mistakes.

    Raises:
        ValueError: a check has no words or the id of an earlier one, requires a check that does not come before it or
            that is extended where it is core itself, or rules out a mistake that is not known.
    """
    before: dict[str, Check] = {}
    for check in checks:
        for problem in _problems(check, before, mistakes):
            raise ValueError(f"{component}: the check {check.id!r} {problem}")
        before[check.id] = check


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


def _problems(check: Check, before: Mapping[str, Check], mistakes: Collection[str]) -> list[str]:
    found = []
    if not check.id.strip() or not check.property.strip():
        found.append("has no id or no property")
    if check.id in before:
        found.append("has the id of an earlier check")
    for required in check.requires:
        if required not in before:
            found.append(f"requires {required!r}, which does not come before it")
        elif check.level == "core" and before[required].level == "extended":
            found.append(f"is core and requires {required!r}, which is extended")
    found += [f"rules out {name!r}, which is no known mistake" for name in check.rules_out if name not in mistakes]
    return found
