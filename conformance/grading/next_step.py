"""What a student does next, from a report: the first thing that is wrong, or that is not begun. Imports no torch."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.grading.report import CAN_BE_CALLED, FROM_SCRATCH, CheckReport, ComponentReport, Report

_COMMAND = "pytest-ddp-grade"
_PLAIN = re.compile(r"[\w.-]+(\[[\w,.-]+\])?([=<>!~]=?[\w.,*=<>!~]+)?")  # a package, with its version or without


@dataclass(frozen=True)
class NextStep:
    """One thing to do.

    Attributes:
        heading: what it is about, in a few words.
        words: paragraphs; the first one is the cause.
        commands: what to run, each after a few words that say what for.
        check: the check that failed, if it is about one.
    """

    heading: str
    words: tuple[str, ...]
    commands: tuple[tuple[str, str], ...] = ()
    check: CheckReport | None = None


def next_step(report: Report, *, here: bool = True) -> NextStep:
    """Return what to do next.

    The order: what keeps the submission from being graded; the first check of an essential aspect that failed; the
    first other check that failed, extended and hidden ones last; what this machine lacks; why a course has not graded
    the rest; the first component that is not begun.

    Args:
        report: what was found.
        here: whether the reader is where it was graded. If not, commands name `.` and no files, and install only what
            has a plain name: an address may hold a password of the staff.
    """
    if not here:
        plain = tuple(name for name in report.environment.packages if _PLAIN.fullmatch(name))
        report = replace(report, submission=".", environment=replace(report.environment, packages=plain))
    if report.not_graded_because:
        heading = "ask who runs the grader: it failed" if report.harness_failed else "mend the adapters"
        return NextStep(heading, (report.not_graded_because,))
    for component, check in in_order(report):
        return _after_failure(report, component, check, here=here)
    for component in report.components:
        if component.status in {"not_gradable", "error"}:
            check = next(one for one in component.core if one.status == component.status)
            return NextStep(f"{component.name} could not be judged", check.explanation, check=check)
    if report.stopped_because:
        return NextStep("ask your course: not everything was graded", (f"{report.stopped_because}.",))
    for component in begun(report):
        if component.status == "not_submitted":
            return _begin(report, component)
    if not report.finished or not all(component.graded for component in report.components):
        return NextStep("nothing yet", ("The grade has not ended, and nothing failed so far.",))
    return _done(report)


def in_order(report: Report) -> list[tuple[ComponentReport, CheckReport]]:
    """Return the checks that failed: those of essential aspects, other core checks, extended ones, hidden ones."""
    failed = [
        (component, check) for component in report.components for check in component.checks if check.status == "failed"
    ]
    return sorted(failed, key=lambda one: (one[1].is_hidden, one[1].level == "extended", not _is_essential(*one)))


def begun(report: Report) -> list[ComponentReport]:
    """Return the components of which the adapters define a function at least; all of them if they are named."""
    return [one for one in report.components if one.submitted or one.why_not_submitted or report.named]


def _is_essential(component: ComponentReport, check: CheckReport) -> bool:
    return any(check.id in aspect.checks for aspect in component.aspects if aspect.essential)


def _after_failure(report: Report, component: ComponentReport, check: CheckReport, *, here: bool) -> NextStep:
    explained = () if check.id in {CAN_BE_CALLED, FROM_SCRATCH} or check.is_hidden else (check.id,)
    commands = (*(_scripts(report, check) if here else ()), _read(component, *explained), _again(report, component))
    worth = f" (extended, {component.extended_worth})" if check.level == "extended" else ""
    return NextStep(f"{component.name}: {check.id} failed{worth}", check.explanation, commands, check)


def _scripts(report: Report, check: CheckReport) -> Iterator[tuple[str, str]]:
    if check.script:
        yield "See it", f"python {shlex.quote(check.script)}"
        yield (
            "Try it again",
            shlex.join([_COMMAND, "replay", str(Path(check.script).with_suffix(".json")), *_packages(report)]),
        )


def _begin(report: Report, component: ComponentReport) -> NextStep:
    why = component.why_not_submitted or "The adapters have no function of it."
    words = (why, f"Write it; it is worth {component.max_points:g} points.")
    return NextStep(f"write {component.name}", words, (_read(component), _again(report, component)))


def _done(report: Report) -> NextStep:
    if not begun(report):
        return NextStep("write the adapters", ("The adapters define no function of any component.",))
    alone = [_again(report, one) for one in report.components if len(report.components) == 1]
    everything = [("Grade everything", _grade(report)) for _ in alone]
    if not report.environment.core_only:
        return NextStep("nothing here", ("Everything that was graded passes.",), tuple(everything))
    graded = alone[0][1] if alone else _grade(report)
    words = "Every check that gives points passes. Extended checks give none: they ask for what torch's own code does."
    if any(one.rules.bonus for one in report.components):
        words = "Every core check passes. Extended checks give bonus points."
    return NextStep("nothing here", (words,), (*everything, ("Run those too", f"{graded} --extended")))


def _again(report: Report, component: ComponentReport) -> tuple[str, str]:
    asked = [f"--components {component.name}"]
    asked += ["--extended"] * (report.submission == "." and not report.environment.core_only)
    asked += ["--from-scratch"] * any(check.id == FROM_SCRATCH for check in component.checks)
    return "Grade it alone", " ".join([_grade(report), *asked])


def _read(component: ComponentReport, *check: str) -> tuple[str, str]:
    return "Read about it", shlex.join([_COMMAND, "explain", component.name, *check])


def _grade(report: Report) -> str:
    return shlex.join([_COMMAND, report.submission, *_packages(report)])


def _packages(report: Report) -> Iterator[str]:
    return (word for name in report.environment.packages for word in ("--with", name))
