"""Rubrics: a course's own points, in a TOML file. Torch is imported when a rubric is read or printed, not before.

    limit = 0.4                       # of a component's points, where an essential aspect is missing
    not_judged = 0.5                  # of a check's points, where it did not run because another one failed

    [ddp_bucketed]
    bonus = 1                         # points on top: each extended check that passes has an equal share
    hidden = ["trains[bfloat16]"]     # checks about which students get their points alone

    [ddp_bucketed.aspects]
    "gradients are averaged" = { points = 3, essential = true }

What a rubric does not name stays as it is.
"""

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from conformance.checks.aspect import Aspect
from conformance.grading.marks import RULES, Outcome, Rules, essential_checks, share
from conformance.grading.report import HIDDEN, NOT_BEFORE, SAME_MISTAKE, CheckReport, ComponentReport, Report
from pytest_ddp.errors import UsageError

_OURS = "The grader failed. This is not the fault of your submission: ask the staff, who find the reason in its output."
_SHARES = ("limit", "not_judged")
_NOT_SHOWN = "Your course does not show what this check looks at."


@dataclass(frozen=True)
class Rubric:
    """The aspects and the rules of components; those that are not named have their own.

    Attributes:
        aspects: by component.
        rules: by component.
        common: the rules of the others.
        others: the aspects of the others, if they are not to keep those that they have.
    """

    aspects: Mapping[str, tuple[Aspect, ...]] = field(default_factory=dict)
    rules: Mapping[str, Rules] = field(default_factory=dict)
    common: Rules = RULES
    others: Mapping[str, tuple[Aspect, ...]] = field(default_factory=dict)

    def applied(self, component: ComponentReport) -> ComponentReport:
        """Return the report with these points: no check runs again."""
        aspects = self.aspects_of(component.name, component.aspects)
        return replace(component, aspects=aspects, rules=self.rules_of(component.name))

    def aspects_of(self, component: str, own: tuple[Aspect, ...]) -> tuple[Aspect, ...]:
        """Return the aspects of a component that has its own where the rubric says nothing."""
        return self.aspects.get(component) or self.others.get(component, own)

    def rules_of(self, component: str) -> Rules:
        """Return the rules of a component."""
        return self.rules.get(component, self.common)


NO_RUBRIC = Rubric()


def regraded(report: Report, rubric: Rubric) -> Report:
    """Return a report with the points of a rubric."""
    return replace(report, components=tuple(map(rubric.applied, report.components)))


def for_students(report: Report) -> Report:
    """Return a report that says nothing of hidden checks but their points, nor what of the grader has failed.

    It does not have the ids of hidden checks either.
    """
    why = _OURS if report.harness_failed else report.not_graded_because
    return replace(report, components=tuple(map(_without_hidden, report.components)), not_graded_because=why)


def _without_hidden(component: ComponentReport) -> ComponentReport:
    ids = [check.id for check in component.checks if check.id in component.rules.hidden]
    names = {one: f"{HIDDEN} ({number})" if number > 1 else HIDDEN for number, one in enumerate(ids, start=1)}
    return replace(
        component,
        checks=tuple(
            _closed(one, names, component) if one.id in names else _open(one, names) for one in component.checks
        ),
        aspects=tuple(
            replace(one, checks=tuple(names.get(id_, id_) for id_ in one.checks)) for one in component.aspects
        ),
        rules=replace(component.rules, hidden=()),
    )


def _closed(check: CheckReport, names: Mapping[str, str], component: ComponentReport) -> CheckReport:
    """Return the report of a hidden check: its share of the points of its aspects, and nothing else."""
    most = sum(one.points / len(one.checks) for one in component.aspects if check.id in one.checks)
    earned = most * share(Outcome(check.status, check.behind), essential_checks(component.aspects), component.rules)
    points = f"{round(earned, 2):g} of {round(most, 2):g} points. {_NOT_SHOWN}"
    return CheckReport(names[check.id], check.level, check.status, points, behind=names.get(check.behind, check.behind))


def _open(check: CheckReport, names: Mapping[str, str]) -> CheckReport:
    """Return the report of another check, without the ids of hidden ones."""
    message, diagnosis = check.message, check.diagnosis
    for hidden, name in names.items():
        message = message.replace(NOT_BEFORE.format(hidden), NOT_BEFORE.format(name))
        diagnosis = diagnosis.replace(SAME_MISTAKE.format(hidden), "")
    return replace(check, message=message, diagnosis=diagnosis, behind=names.get(check.behind, check.behind))


def read_rubric(path: Path) -> Rubric:
    """Read a rubric.

    Raises:
        UsageError: the file cannot be read, or says something that is not known; the message names the line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        plain = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None
    from conformance.components.registry import COMPONENTS  # noqa: PLC0415  imports torch

    given = {name: one.aspects for name, one in COMPONENTS.items()}
    checks = {name: tuple(check.id for check in one.checks) for name, one in COMPONENTS.items()}
    problems = [f"{path}:{_line(text, keys)}: {words}" for keys, words in _problems(plain, given, checks)]
    if problems:
        raise UsageError("\n".join(problems))
    return _rubric(plain, given)


def assigned() -> tuple[str, ...]:
    """Return the components of the assignment, which a course has without a rubric: each has functions of its own.

    A pair has none: the assignment does not ask for a submission's wrapper and its optimizer together.
    """
    from conformance.components.registry import BY_DEFAULT, COMPONENTS  # noqa: PLC0415  imports torch

    return tuple(name for name in BY_DEFAULT if COMPONENTS[name].contract.kind != "pair")


def default_text() -> str:
    """Return the rubric that a course has without one, as TOML."""
    from conformance.components.registry import COMPONENTS  # noqa: PLC0415  imports torch

    lines = [f"limit = {RULES.limit}", f"not_judged = {RULES.not_judged}"]
    for name in assigned():
        lines += ["", f"[{name}.aspects]"]
        for one in COMPONENTS[name].aspects:
            essential = ", essential = true" if one.essential else ""
            lines.append(f'"{one.name}" = {{ points = {one.points:g}{essential} }}')
    return "\n".join([*lines, ""])


def _rubric(plain: Mapping[str, Any], given: Mapping[str, tuple[Aspect, ...]]) -> Rubric:
    limit, not_judged = (float(plain.get(key, vars(RULES)[key])) for key in _SHARES)
    common, aspects, rules = replace(RULES, limit=limit, not_judged=not_judged), {}, {}
    for name, table in plain.items():
        if name in _SHARES:
            continue
        changed = table.get("aspects", {})
        aspects[name] = tuple(replace(one, **_values(changed.get(one.name, {}))) for one in given[name])
        rules[name] = replace(common, bonus=float(table.get("bonus", 0)), hidden=tuple(table.get("hidden", ())))
    return Rubric(aspects, rules, common, given)


def _values(table: Mapping[str, Any]) -> dict[str, Any]:
    return {**table, **({"points": float(table["points"])} if "points" in table else {})}


def _problems(
    plain: Mapping[str, Any], given: Mapping[str, Sequence[Aspect]], checks: Mapping[str, Sequence[str]]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield what is wrong, each with the keys that lead to it."""
    for name, value in plain.items():
        if name in _SHARES:
            if not _is_number(value) or value > 1:
                yield (name,), f"{name} is a share, from 0 to 1"
        elif not isinstance(value, dict) and name not in given:
            yield (name,), f"{name!r} is not known; there are {', '.join(_SHARES)}, and a table for each component"
        elif name not in given:
            yield (name,), f"no component is called {name!r}; there are {', '.join(given)}"
        elif not isinstance(value, dict):
            yield (name,), f"{name} is a table: `[{name}.aspects]`"
        else:
            yield from (((name, *keys), words) for keys, words in _of_component(value, given[name], checks[name]))


def _of_component(
    table: Mapping[str, Any], aspects: Sequence[Aspect], checks: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    names = [one.name for one in aspects]
    for key, value in table.items():
        if key == "bonus" and not _is_number(value):
            yield (key,), "bonus is a number of points"
        elif key == "hidden":
            unknown = [one for one in value if one not in checks] if isinstance(value, list) else [value]
            if unknown:
                yield (key,), f"no check is called {unknown[0]!r}: hidden is a list of ids as docs/checks.md has them"
        elif key == "aspects":
            yield from (((key, *keys), words) for keys, words in _of_aspects(value, names))
        elif key not in {"bonus", "hidden"}:
            yield (key,), f"{key!r} is not known; there are aspects, bonus and hidden"


def _of_aspects(value: Any, names: Sequence[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    if not isinstance(value, dict):
        yield (), "aspects is a table: `[COMPONENT.aspects]`"
        return
    for name, changed in value.items():
        if name not in names:
            yield (name,), f"no aspect is called {name!r}; there are {', '.join(map(repr, names))}"
        elif not _is_change(changed):
            yield (name,), "an aspect is `{ points = 1.5, essential = true }`, or one of the two"


def _is_change(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) - {"points", "essential"}:
        return False
    return _is_number(value.get("points", 0)) and isinstance(value.get("essential", False), bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _line(text: str, keys: Sequence[str]) -> int:
    """Return the number of the line that names the last of these keys, after lines that name those before it."""
    lines, at = text.splitlines(), 0
    for key in keys:
        found = re.compile(rf"(^|[\s\[.\"'{{,]){re.escape(key)}($|[\s\].\"'=}}])")
        at = next((number for number in range(at, len(lines)) if found.search(lines[number])), at)
    return at + 1
