"""docs/checks.md has every check as the grader has it: `python tests/conformance/test_checks_page.py` writes it."""

from collections.abc import Iterable
from pathlib import Path

from conformance.checks.check import Check
from conformance.components.component import Component
from conformance.components.registry import COMPONENTS

PAGE = Path(__file__).parents[2] / "docs" / "checks.md"
_HEAD = """\
# The checks

Every component is held to the checks below ([grading](grading.md)), here by component and by aspect. A name such as
`trains[convolution]` is a variant: the same assertion on other scenarios. The core checks of an aspect share its points
equally; an extended check gives none. A check is *not run* where a check that it requires has not passed, where it is
about an optional feature that the submission lacks, such as `no_sync`, and where it is extended and the submission
refuses by an exception.

Extended checks ask for what torch's own implementations do right. Two things that none of them does are left unjudged:
several backward passes through one forward (`retain_graph=True`), of which torch's DDP averages the first alone, and
backward through the gradients of `fsdp`, where `fully_shard` raises an exception.

This page is generated: `python tests/conformance/test_checks_page.py`.
"""


def page() -> str:
    """Return the text of the page: wrappers in one section, then one section for each other component."""
    wrappers = [one for one in COMPONENTS.values() if one.contract.kind == "wrapper"]
    others = [one for one in COMPONENTS.values() if one not in wrappers]
    return "\n".join([_HEAD, *_wrappers(wrappers), *(line for one in others for line in _component(one))])


def _wrappers(wrappers: list[Component]) -> Iterable[str]:
    yield "## Data-parallel wrappers\n"
    yield from (f"- `{one.name}`: {one.about} {_points(one)}" for one in wrappers)
    yield "\nA check is held to every wrapper, unless its row names some.\n"
    held: dict[Check, list[str]] = {}
    for one in wrappers:
        for check in one.checks:
            held.setdefault(check, []).append(one.name)
    names = {check: "" if len(some) == len(wrappers) else f"{_listed(some)}: " for check, some in held.items()}
    yield from _tables(wrappers, names)


def _component(one: Component) -> Iterable[str]:
    yield f"## `{one.name}`\n"
    yield f"{one.about} {_points(one)}\n"
    yield from _tables([one], dict.fromkeys(one.checks, ""))


def _tables(components: list[Component], checks: dict[Check, str]) -> Iterable[str]:
    """Yield a table of core checks for each aspect, then one of extended checks; a property may follow words."""
    core = [check for check in checks if check.level == "core"]
    aspects = [aspect for one in components for aspect in one.aspects]
    for name in dict.fromkeys(aspect.name for aspect in aspects):
        alike = [aspect for aspect in aspects if aspect.name == name]
        worth = ", ".join(f"{points:g}" for points in dict.fromkeys(one.points for one in alike))
        essential = ", essential" if alike[0].essential else ""
        yield f"### {name[0].upper()}{name[1:]} ({worth} points{essential})\n\n| core check | property |\n|---|---|"
        ids = {check for one in alike for check in one.checks}
        yield from (f"| `{one.id}` | {checks[one]}{one.property} |" for one in core if one.id in ids)
        yield ""
    extended = sorted((one for one in checks if one.level == "extended"), key=lambda one: one.theme)
    if extended:
        yield "### Extended checks\n\n| check | about | property |\n|---|---|---|"
        yield from (f"| `{one.id}` | {one.theme} | {checks[one]}{one.property} |" for one in extended)
        yield ""


def _points(one: Component) -> str:
    return f"{sum(aspect.points for aspect in one.aspects):g} points."


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def test_the_page_has_every_check_and_no_other():
    assert PAGE.read_text(encoding="utf-8") == page()


def test_a_maintainer_can_hold_the_names_of_all_checks():
    assert len({check.id for component in COMPONENTS.values() for check in component.checks}) <= 180


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
