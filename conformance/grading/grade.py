"""Grades one submission: every component it has, every check, one report."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # torch.optim imports it, slowly, at its first use: better now, while ranks start

from conformance.checks.check import Check
from conformance.components.registry import COMPONENTS
from conformance.execution.executor import Executor
from conformance.execution.rank_pools import SizedRanks
from conformance.grading.report import CheckReport, ComponentReport, Environment, Report
from conformance.judging.run_check import Result, Status, run_check
from conformance.reproduction.case_script import PartReproduction
from conformance.reproduction.replay import Replay
from conformance.reproduction.training_script import Reproduction
from conformance.scenarios.drawn import Drawn
from conformance.scenarios.scenario import Scenario
from conformance.submissions.location import Location
from pytest_ddp.errors import UsageError


@dataclass(frozen=True)
class Grading:
    """How to grade.

    Attributes:
        world_size: ranks in the largest world.
        components: names of the components to look at.
        seed: decides every draw and every number, whatever is graded and wherever it lies.
        examples: scenarios per check.
        repro_dir: where scripts and cases that show failures go; None for none.
        from_scratch: whether a component fails that uses torch's own implementation.
        core: whether core checks alone are held, which decide status and points.
    """

    seed: int
    world_size: int
    components: tuple[str, ...]
    examples: int
    repro_dir: Path | None = None
    from_scratch: bool = False
    core: bool = False

    def checks(self, component: str) -> tuple[Check, ...]:
        """Return the checks that a component is held to, in their order."""
        return tuple(check for check in COMPONENTS[component].checks if check.level == "core" or not self.core)


def grade(location: Location, grading: Grading, ranks: SizedRanks) -> Report:
    """Grade a submission on ranks that serve no other.

    Raises:
        UsageError: it does not import, has no adapters for these components, or one with a wrong signature.
        HarnessError: ranks could not be had.
    """
    executor = Executor(ranks, location, secret=str(grading.seed))
    submitted = submitted_components(executor, grading.components)
    reports = tuple(
        _grade_component(name, executor, grading) if name in submitted else _not_submitted(name, executor, grading)
        for name in grading.components
    )
    return Report(location.given, _environment(grading), reports, tuple(sorted(executor.stubbed)))


def ungraded(given: str, grading: Grading, reason: str, *, ours: bool) -> Report:
    """Return the report of a submission that could not be graded, by its own fault or by ours: no points of as many."""
    status: Status = "error" if ours else "not_run"
    reports = (
        ComponentReport(name, tuple(_not_run(check, status=status) for check in grading.checks(name)), submitted=ours)
        for name in grading.components
    )
    return Report(given, _environment(grading), tuple(reports), ungraded=reason)


def _environment(grading: Grading) -> Environment:
    return Environment(
        torch=torch.__version__,
        python=platform.python_version(),
        backend="gloo",
        device="cpu",
        world_size=grading.world_size,
        seed=grading.seed,
        core=grading.core,
    )


def submitted_components(executor: Executor, wanted: Sequence[str]) -> list[str]:
    """Return those of the wanted components that are submitted.

    Raises:
        UsageError: the adapters do not import, define none of these, or define one that cannot be called.
    """
    given, found = executor.location.given, executor.look(component.contract for component in COMPONENTS.values())
    if found.error:
        raise UsageError(f"the adapters of {given} do not import:\n{found.error}")
    wrong = [sentence for name, sentence in found.wrong_signatures if name in wanted]
    if wrong:
        raise UsageError(f"wrong signature in the adapters of {given}: " + "; ".join(wrong))
    defined = [name for name in wanted if name in found.defined]
    if not defined:
        lacking = [lacks(name, executor.missing[name]) for name in wanted if name in executor.missing]
        looked_for = "looked for " + ", ".join(str(COMPONENTS[name].contract.get) for name in wanted)
        raise UsageError(f"the adapters of {given} define no component asked for; {'; '.join(lacking) or looked_for}")
    return [name for name in defined if executor.is_implemented(COMPONENTS[name])]


def lacks(component: str, missing: Sequence[str]) -> str:
    """Say why a component of which some functions are there counts as not submitted."""
    return f"{component} lacks {' and '.join(missing)}"


def _not_submitted(name: str, executor: Executor, grading: Grading) -> ComponentReport:
    checks = tuple(_not_run(check) for check in grading.checks(name))
    return ComponentReport(name, checks, submitted=False, missing=executor.missing.get(name, ()))


def _grade_component(name: str, executor: Executor, grading: Grading) -> ComponentReport:
    reports: list[CheckReport] = []
    for check in grading.checks(name):
        if not_from_scratch(name, executor, grading):
            break
        reports.append(grade_check(name, check, executor, grading, {report.id: report for report in reports}))
    executor.forget(name)
    copied = not_from_scratch(name, executor, grading)
    checks = (copied, *map(_not_run, grading.checks(name))) if copied else tuple(reports)
    borrowed = tuple(sorted(executor.borrowed.get(name, ())))
    return ComponentReport(name, checks, borrowed=borrowed, alone=name in executor.alone)


def not_from_scratch(component: str, executor: Executor, grading: Grading) -> CheckReport | None:
    """Return the failure of a component that has used torch's own implementation where it was to be written."""
    borrowed = sorted(executor.borrowed.get(component, ()))
    if not grading.from_scratch or not borrowed:
        return None
    return CheckReport(
        "written_from_scratch",
        "core",
        "failed",
        "The component is written by hand: it uses none of torch's own implementations.",
        points=0.0,
        message=f"{component} uses {' and '.join(borrowed)}; nothing else of it counts.",
        diagnosis="Write it with torch.distributed's collectives, or grade it without --from-scratch "
        "(in pytest: --ddp-from-scratch).",
    )


def grade_check(
    component: str, check: Check, executor: Executor, grading: Grading, before: dict[str, CheckReport]
) -> CheckReport:
    """Run one check, unless one that it requires has not passed."""
    missing = [required for required in check.requires if before[required].status != "passed"]
    if missing:
        return _not_run(check, f"not run: {missing[0]} must pass first")
    result = run_check(
        COMPONENTS[component],
        check,
        executor,
        world_size=grading.world_size,
        seed=grading.seed,
        examples=grading.examples,
    )
    return _reported(component, result, executor, grading)


def _reported(component: str, result: Result, executor: Executor, grading: Grading) -> CheckReport:
    repro = ""
    if result.scenario is not None and grading.repro_dir is not None:
        repro = str(_write(component, result, result.scenario, executor, grading.repro_dir))
    return CheckReport(
        id=result.check.id,
        level=result.check.level,
        status=result.status,
        property=result.check.property,
        points=result.check.points if result.check.level == "core" else 0.0,
        message=result.message,
        diagnosis=result.diagnosis,
        examples=result.examples,
        seconds=result.seconds,
        repro=repro,
        scenario=result.scenario,
    )


def _write(component: str, result: Result, scenario: Drawn, executor: Executor, folder: Path) -> Path:
    """Write how to see a failure again, a file to replay and a script beside it; return the path of the script."""
    Replay.of(executor, component, result.check, scenario).write(folder, executor.location)
    about: dict[str, Any] = {
        "location": executor.location,
        "component": component,
        "check": result.check,
        "seed": executor.seed(scenario),
        "message": f"{result.message}\n\n{result.diagnosis}".rstrip(),
        "stubbed": frozenset(executor.stubbed),
        "hash_apart": result.hash_apart,
    }
    if isinstance(scenario, Scenario):
        return Reproduction(scenario=scenario, **about).write(folder)
    return PartReproduction(case=scenario, **about).write(folder)


def _not_run(check: Check, message: str = "", status: Status = "not_run") -> CheckReport:
    points = check.points if check.level == "core" else 0.0
    return CheckReport(check.id, check.level, status, check.property, points, message)
