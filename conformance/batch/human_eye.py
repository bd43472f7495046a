"""Says what of a submission a person should look at, because the grade alone may not do it justice."""

from collections.abc import Iterator

from conformance.checks.words import RACE
from conformance.grading.report import ComponentReport, Report
from pytest_ddp.outcomes.text_limits import one_line

_ODD = {"error": "an error of the grader", "not_gradable": "this machine lacks something", "not_graded": "not graded"}
_MUCH = 0.5  # of a component's points
_INTEGRITY = ("belongs to the grader", "the grader measures with")


def reasons(report: Report, why: str) -> list[str]:
    """Return why a person should look at a submission; nothing for most.

    Args:
        report: what was found.
        why: why it was not graded any further; empty if it was graded to its end.
    """
    if report.not_graded_because:
        first, *others = report.not_graded_because.strip().splitlines()
        return [one_line(f"{first} {others[-1].strip()}" if first.endswith(":") else first)]
    found = [why] if why else []
    if all(component.graded and not component.submitted for component in report.components):
        found.append("none of the components is submitted")
    for component in report.components:
        found += [f"{component.name}: {words}" for words in _of_component(component, cut_off=bool(why))]
    return found


def _of_component(component: ComponentReport, *, cut_off: bool) -> Iterator[str]:
    if component.status in _ODD and not (cut_off and component.status == "not_graded"):
        yield _ODD[component.status]
    if component.missing_functions:
        yield f"lacks {' and '.join(component.missing_functions)}"
    elif component.not_implemented and not component.not_implemented.startswith(f"`{_first_function(component)}`"):
        yield component.not_implemented
    if component.uses_from_torch:
        yield f"uses {', '.join(component.uses_from_torch)}"
    if component.status == "failed":
        races = [check.id for check in component.core if RACE in check.diagnosis]
        if races:
            yield f"{' and '.join(races)} failed only sometimes"
        changed = [check.id for check in component.core if any(words in check.message for words in _INTEGRITY)]
        if changed:
            yield f"{changed[0]} failed because of what belongs to the grader: read its message"
        yield from _limited(component)


def _first_function(component: ComponentReport) -> str:
    """Return the function that a template has not implemented either: a component is not begun without it."""
    from conformance.components.registry import COMPONENTS  # noqa: PLC0415  imports torch

    return COMPONENTS[component.name].contract.get.name


def _limited(component: ComponentReport) -> Iterator[str]:
    """Say that a missing essential aspect has cost much of what was earned."""
    earned = sum(mark.points for mark in component.marks)
    missing = [f'"{mark.aspect.name}"' for mark in component.marks if mark.status == "missing"]
    if missing and earned > max(component.points, _MUCH * component.max_points):
        names = " and ".join(missing)
        yield f"{round(earned, 2):g} points are limited to {component.points:g}, because {names} is missing"
