"""The explanation of a component or a check, as rich prints it."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from conformance.checks.check import Check
from conformance.components.component import Component
from conformance.components.registry import COMPONENTS
from conformance.explanation.aspects import OF_ASPECTS
from conformance.explanation.mistakes import mistakes_of, usual_mistakes
from conformance.explanation.topics import topic
from pytest_ddp.errors import UsageError

_CLOSEST = 3


@dataclass(frozen=True)
class Course:
    """What a course asks for.

    Attributes:
        components: by name, with the course's own points.
        bonuses: the points that all extended checks of a component give together, by its name; 0 for the others.
    """

    components: Mapping[str, Component] = field(default_factory=lambda: COMPONENTS)
    bonuses: Mapping[str, float] = field(default_factory=dict)


THE_ASSIGNMENT = Course()


def explained(words: Sequence[str], course: Course = THE_ASSIGNMENT) -> Iterator[RenderableType]:
    """Yield the explanation of `COMPONENT`, `CHECK`, `COMPONENT CHECK` or `COMPONENT: CHECK`, as reports have it.

    Raises:
        UsageError: there is no such component or check; the message says the closest names. Or no name is given.
    """
    names = " ".join(words).replace(":", " ").split()
    if not names:
        raise UsageError("explain: give the name of a component or a check")
    first, *rest = names
    if first in course.components and not rest:
        return _component(course.components[first], course)
    if first in course.components:
        return _checks(rest[0], [course.components[first]], course)
    return _checks(first, list(course.components.values()), course)


def _checks(name: str, components: Sequence[Component], course: Course) -> Iterator[RenderableType]:
    """Explain a check; components of another kind, or that have it with another property, get a text of their own."""
    having: dict[tuple[str, str, str], list[tuple[Component, Check]]] = {}
    for component in components:
        for check in component.checks:
            if check.id == name:
                alike = (check.property, component.contract.kind, topic(component, check).why)
                having.setdefault(alike, []).append((component, check))
    if not having:
        raise UsageError(_unknown(name, components))
    return (part for alike in having.values() for part in _check(*alike[0], [one for one, _ in alike], course))


def _check(component: Component, check: Check, alike: Sequence[Component], course: Course) -> Iterator[RenderableType]:
    about = topic(component, check)
    yield Text.assemble("\n", (check.id, "bold yellow"), f" ({', '.join(one.name for one in alike)})")
    yield from _titled("What is required", Text(check.property))
    yield from _titled("Points", Text(_points(check, alike, course)))
    yield from _titled("Why it matters", Text(about.why))
    yield from _titled("Usual mistakes, and what helps", _listed(usual_mistakes(component, check)))
    yield from _titled("How it should be", about.picture)


def _component(component: Component, course: Course) -> Iterator[RenderableType]:
    yield Text.assemble("\n", (component.name, "bold yellow"), f": {component.about}")
    wanted = component.contract.functions
    yield from _titled("Functions in the adapters' file", *(Text(f"{one}") for one in wanted))
    yield from _titled("What gives points", *_aspects(component, course))
    for aspect in component.aspects:
        if aspect.essential and (about := OF_ASPECTS.get(aspect.name)):
            mistakes = _listed(mistakes_of(about, component))
            yield from _titled(f"{aspect.name[0].upper()}{aspect.name[1:]}", Text(about.why), about.picture)
            yield from _titled("Usual mistakes, and what helps", mistakes)


def _aspects(component: Component, course: Course) -> Iterator[RenderableType]:
    for aspect in component.aspects:
        yield Text(f"{aspect.name}: {_counted(aspect.points)}{', essential' if aspect.essential else ''}")
        yield Padding(Text(", ".join(aspect.checks)), (0, 0, 0, 2), expand=False)  # whole names, to be copied
    if bonus := course.bonuses.get(component.name):
        yield Text(f"extended checks: {_counted(bonus)} on top")


def _counted(points: float) -> str:
    return f"{points:g} point{'' if points == 1 else 's'}"


def _listed(sentences: Sequence[str]) -> Table:
    table = Table.grid(padding=(0, 1, 0, 0))
    for one in sentences:
        table.add_row("-", Text(one))
    return table


def _points(check: Check, components: Sequence[Component], course: Course) -> str:
    """Say which aspects a check belongs to, each with its points in these components."""
    aspects = [aspect for one in components for aspect in one.aspects if check.id in aspect.checks]
    bonuses = [f"{_counted(bonus)} in {one.name}" for one in components if (bonus := course.bonuses.get(one.name))]
    if not aspects and bonuses:
        return f"A share of the bonus: {', '.join(bonuses)}."
    if not aspects:
        return "None: it is an extended check, which asks for what torch's own implementation does."
    worth: dict[tuple[str, bool], list[str]] = {}
    for one in aspects:
        worth.setdefault((one.name, one.essential), []).append(f"{one.points:g}")
    return "\n".join(
        f'A share of "{name}" ({" or ".join(dict.fromkeys(points))} points{", essential" if essential else ""}).'
        for (name, essential), points in worth.items()
    )


def _titled(title: str, *parts: RenderableType) -> Iterator[RenderableType]:
    yield Text(f"\n{title}", "bold")
    yield from (Padding(part, (0, 0, 0, 2), expand=False) for part in parts)


def _unknown(name: str, components: Sequence[Component]) -> str:
    names = list(dict.fromkeys([*COMPONENTS, *(check.id for one in components for check in one.checks)]))
    close = difflib.get_close_matches(name, names, _CLOSEST, 0.4) or [one for one in names if name in one][:_CLOSEST]
    meant = f"; do you mean {' or '.join(close)}?" if close else f"; there are the components {', '.join(COMPONENTS)}"
    return f"no component and no check is called {name}{meant}"
