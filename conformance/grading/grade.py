"""Grades submissions: every component, every check. What happens is told in events, from which the reports follow."""

import platform
import traceback
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch._dynamo  # torch.optim imports it, slowly, at its first use: better now, while ranks start

from conformance.checks.check import Check
from conformance.components.registry import COMPONENTS
from conformance.diagnosis.limits import limit_met
from conformance.execution.deadlines import IMPORT_SECONDS
from conformance.execution.executor import KEPT_BYTES, Executor, give_back_memory
from conformance.execution.fork_servers import ForkServers, ranks_from
from conformance.execution.simulated_ranks import SimulatedRanks
from conformance.grading.events import (
    CheckBegan,
    CheckEnded,
    ComponentBegan,
    ComponentEnded,
    Event,
    GradeBegan,
    RanksBegan,
    SubmissionBegan,
    SubmissionEnded,
)
from conformance.grading.report import (
    CAN_BE_CALLED,
    FROM_SCRATCH,
    GRADER_ERROR,
    NONE_DEFINED,
    NOT_BEFORE,
    SAME_MISTAKE,
    CheckReport,
    ComponentReport,
    Environment,
    Report,
)
from conformance.grading.rubric import NO_RUBRIC, Rubric, regraded
from conformance.grading.timeline import timeline
from conformance.grading.visible import visible, visible_names
from conformance.judging.ahead import drawing_ahead
from conformance.judging.draws import Draws, Spared
from conformance.judging.run_check import Drawing, Result, draws_of, run_check
from conformance.oracle.remembered import remembering
from conformance.reproduction import files
from conformance.scenarios.claims import EVERYTHING, Claims
from conformance.submissions.library import Library
from conformance.submissions.location import locate
from pytest_ddp.errors import UsageError
from pytest_ddp.outcomes.text_limits import one_line

_SMALL = 0.25  # of the bytes that a grade remembers, where memory is scarce


@dataclass(frozen=True)
class Grading:
    """How to grade.

    Attributes:
        seed: selects every scenario and every number; neither the submission nor its path changes them.
        world_size: the number of ranks in the largest world.
        components: the names of the components to grade.
        examples: scenarios per check.
        repro_dir: the folder for scripts and cases that show failures; None to write none.
        from_scratch: whether a component fails if it uses torch's own implementation.
        core: whether extended checks are left out.
        libraries: packages whose exceptions count as the submission's own refusals.
        import_seconds: seconds that the first import of a submission may take.
        rubric: the points.
        named: whether somebody named the components, so that each of them is asked for.
        claims: what a library claims; a submission claims everything.
        simulate: whether simulated ranks run what they can. What fails there counts if it fails on real ranks, too.
        packages: what was installed for the grade.
        library: what scripts import from if a library is graded: `repro_dir` is the folder of its files alone then.
    """

    seed: int
    world_size: int
    components: tuple[str, ...]
    examples: int
    repro_dir: Path | None = None
    from_scratch: bool = False
    core: bool = False
    libraries: tuple[str, ...] = ()
    import_seconds: float = IMPORT_SECONDS
    rubric: Rubric = NO_RUBRIC
    named: bool = True
    claims: Claims = EVERYTHING
    simulate: bool = False
    packages: Sequence[str] = ()
    library: Library | None = None

    def checks(self, component: str) -> tuple[Check, ...]:
        """Return the checks that a component is held to, in their order."""
        return tuple(check for check in COMPONENTS[component].checks if check.level == "core" or not self.core)

    def draws(self, components: Iterable[str]) -> list[Draws]:
        """Return what the checks of components draw, unless these are spared something."""
        return [
            draws_of(COMPONENTS[name], check, str(self.seed), **self.drawing)
            for name in components
            for check in self.checks(name)
        ]

    @property
    def drawing(self) -> Drawing:
        """The bounds of what is drawn."""
        return Drawing(world_size=self.world_size, seed=self.seed, examples=self.examples, claims=self.claims)


def grade(paths: Sequence[str], grading: Grading, launcher: ForkServers) -> Generator[Event]:
    """Grade submissions one after the other, each on ranks that serve no other; no fault of one stops the next.

    Raises:
        UsageError: sandboxes are required, and this machine refuses them.
    """
    hold_required(launcher)
    yield GradeBegan(tuple(regraded(planned(path, grading), grading.rubric) for path in paths))
    with remembering(_SMALL if launcher.small else 1):
        for path in paths:
            yield SubmissionBegan(path)
            yield from _grade_submission(path, grading, launcher)


def hold_required(launcher: ForkServers) -> None:
    """Raise UsageError if sandboxes are required, and this machine refuses them: that is no submission's fault."""
    if launcher.isolation == "require":
        with launcher.serving():
            pass


def planned(path: str, grading: Grading) -> Report:
    """Return the report of a submission before its grade: every check is there, and none has run."""
    environment = Environment(
        torch=torch.__version__,
        python=platform.python_version(),
        backend="gloo",
        device="cpu",
        world_size=grading.world_size,
        seed=grading.seed,
        core_only=grading.core,
        packages=tuple(grading.packages),
    )
    components = (
        ComponentReport(name, tuple(map(_not_run, grading.checks(name))), COMPONENTS[name].aspects, graded=False)
        for name in grading.components
    )
    return Report(path, environment, tuple(components), finished=False, named=grading.named)


def _grade_submission(path: str, grading: Grading, launcher: ForkServers) -> Iterator[Event]:
    try:
        location = locate(path)
        location = replace(location, libraries=(*location.libraries, *grading.libraries))
        with ranks_from(launcher, location) as ranks:
            yield RanksBegan(ranks.sandbox.enforced)
            kept = KEPT_BYTES * (_SMALL if launcher.small else 1)
            executor = Executor(ranks, location, str(grading.seed), grading.import_seconds, kept_bytes=kept)
            yield from _grade_components(executor, grading)
            ended = SubmissionEnded(stand_ins=visible_names(executor.stubbed))
    except UsageError as error:
        ended = SubmissionEnded(visible(str(error)))
    except Exception:  # noqa: BLE001  whatever it is, it is ours, and must not cost the next submission its grade
        ended = SubmissionEnded(f"grading {path}: {GRADER_ERROR}\n{traceback.format_exc()}", harness_failed=True)
    yield ended


def _grade_components(executor: Executor, grading: Grading) -> Iterator[Event]:
    try:
        submitted = submitted_components(executor, grading.components)
    except UsageError:
        for name in grading.components:  # what is begun says what it lacks, though nothing is graded
            if name in executor.missing:
                yield ComponentEnded(grading.rubric.applied(_not_submitted(name, executor, grading)))
        raise
    if grading.simulate:
        executor.simulated = executor.on(executor.ranks.other(SimulatedRanks))
    with drawing_ahead(() if grading.simulate or executor.ranks.one_size else grading.draws(submitted)):
        for name in grading.components:
            if grading.repro_dir is not None:
                with suppress(OSError):  # where scripts cannot be written, the report says so
                    files.remove_stale(executor.location, [name], grading.repro_dir)
            if name in submitted:
                yield from _grade_component(name, executor, grading)
            else:
                yield ComponentEnded(grading.rubric.applied(_not_submitted(name, executor, grading)))


def submitted_components(executor: Executor, wanted: Sequence[str], adapters: str = "") -> list[str]:
    """Return those of the wanted components that are submitted.

    Args:
        executor: has the submission.
        wanted: the names of components.
        adapters: what messages call the adapters; by default, after their path.

    Raises:
        UsageError: the adapters do not import, or define none of these.
    """
    adapters = adapters or f"the adapters of {executor.location.given}"
    found = executor.look(component.contract for component in COMPONENTS.values())
    if found.error:
        why = "\n".join(filter(None, [found.error, limit_met("", found.error)]))
        raise UsageError(f"{adapters} cannot be imported: {why}")
    defined = [name for name in wanted if name in found.defined]
    if not defined:
        lacking = [lacks(name, executor.missing[name]) for name in wanted if name in executor.missing]
        looked_for = "looked for " + ", ".join(str(COMPONENTS[name].contract.get) for name in wanted)
        raise UsageError(f"{adapters} {NONE_DEFINED}; {'; '.join(lacking) or looked_for}")
    return [name for name in defined if name in executor.not_callable or executor.is_implemented(COMPONENTS[name])]


def lacks(component: str, missing: Sequence[str]) -> str:
    """Say which functions a component lacks that defines others."""
    return f"{component} lacks {' and '.join(missing)}"


def _not_submitted(name: str, executor: Executor, grading: Grading) -> ComponentReport:
    checks = tuple(_not_run(check) for check in grading.checks(name))
    aspects, missing = COMPONENTS[name].aspects, executor.missing.get(name, ())
    return ComponentReport(
        name,
        checks,
        aspects,
        submitted=False,
        missing_functions=missing,
        not_implemented=visible(one_line(executor.not_implemented.get(name, ""))),
    )


def _grade_component(name: str, executor: Executor, grading: Grading) -> Iterator[Event]:
    checks, reports = grading.checks(name), dict[str, CheckReport]()
    yield ComponentBegan(name, len(checks))
    for check in checks:
        if failed_as_a_whole(name, executor, grading):
            break
        yield CheckBegan(name, check.id)
        reports[check.id] = grade_check(name, check, executor, grading, reports)
        give_back_memory()
        yield CheckEnded(name, reports[check.id])
        if reports[check.id].status == "not_gradable":
            break
    executor.forget(name)
    yield ComponentEnded(grading.rubric.applied(_graded(name, reports, executor, grading)))


def _graded(name: str, reports: dict[str, CheckReport], executor: Executor, grading: Grading) -> ComponentReport:
    failed = failed_as_a_whole(name, executor, grading)
    ended = {} if failed else reports
    checks = (*filter(None, [failed]), *(ended.get(check.id) or _not_run(check) for check in grading.checks(name)))
    borrowed = visible_names(executor.borrowed.get(name, ()))
    aspects, alone = COMPONENTS[name].aspects, name in executor.alone
    return ComponentReport(name, checks, aspects, uses_from_torch=borrowed, new_processes=alone)


def failed_as_a_whole(component: str, executor: Executor, grading: Grading) -> CheckReport | None:
    """Return the failure of a component that cannot be called, or had to be written by hand and was not.

    Its other checks do not run, or do not count.
    """
    borrowed = sorted(executor.borrowed.get(component, ()))
    if why := executor.not_callable.get(component):
        return _failed(CAN_BE_CALLED, "Each adapter function takes the arguments of the assignment.", why)
    if not grading.from_scratch or not borrowed:
        return None
    return _failed(
        FROM_SCRATCH,
        "The component is written by hand: it uses none of torch's own implementations.",
        f"{component} uses {' and '.join(borrowed)}, so its other checks did not run. Write it with "
        "torch.distributed's collectives, or grade it without --from-scratch (in pytest: --ddp-from-scratch).",
    )


def _failed(check: str, requirement: str, message: str) -> CheckReport:
    return CheckReport(check, "core", "failed", requirement, message=visible(message))


def grade_check(
    component: str, check: Check, executor: Executor, grading: Grading, before: dict[str, CheckReport]
) -> CheckReport:
    """Run one check, unless one that it requires has not passed."""
    missing = [required for required in check.requires if not before[required].allows_others]
    if missing:
        behind = before[missing[0]].behind or missing[0]
        return replace(_not_run(check), message=NOT_BEFORE.format(missing[0]), behind=behind)
    spared = _spared(component, check, before)
    result = _run(component, check, executor, grading, spared)
    if (
        result.status == "failed"
        and result.when == "always"
        and not spared.in_float32
        and component not in executor.watched  # a hang costs its deadline, in float32 once more
        and _tells_dtype(component, check)
    ):
        eased = replace(spared, in_float32=True)
        again = _run(component, check, executor, grading, eased)
        if again.status == "passed":
            result, spared = again, eased
    report = _reported(component, result, executor, grading)
    return _told_once(replace(report, in_float32=spared.in_float32), before)


def _told_once(report: CheckReport, before: dict[str, CheckReport]) -> CheckReport:
    """Refer to the first check that failed for the same cause, if there is one, instead of the same advice."""
    alike = (one for one in before.values() if report.cause and one.cause == report.cause)
    first = next((one for one in alike if one.level == "core" or report.level == "extended"), None)
    return replace(report, diagnosis=SAME_MISTAKE.format(first.id)) if first else report


def _tells_dtype(component: str, check: Check) -> bool:
    return check.id in COMPONENTS[component].carries


def _spared(component: str, check: Check, before: dict[str, CheckReport]) -> Spared:
    """Return what a component is spared after the checks that it has failed."""
    start = before.get(COMPONENTS[component].start)
    return Spared(
        equal_start=start is not None and start.status == "failed",
        in_float32=not check.exact and any(report.in_float32 for report in before.values()),
    )


def _run(component: str, check: Check, executor: Executor, grading: Grading, spared: Spared) -> Result:
    return run_check(
        COMPONENTS[component],
        check,
        executor,
        spared=spared,
        **grading.drawing,
    )


def _reported(component: str, result: Result, executor: Executor, grading: Grading) -> CheckReport:
    script, without_script, drawn, asked = "", "", result.scenario, COMPONENTS[component]
    if drawn is not None and grading.repro_dir is not None:
        try:
            script = str(files.write(asked, result, executor, grading.repro_dir, grading.library))
        except files.UnwritableError as error:
            without_script = str(error)
    seen = drawn is not None and executor.knows(asked, drawn)
    return CheckReport(
        id=result.check.id,
        level=result.check.level,
        status=result.status,
        requirement=result.check.property,
        message=visible(result.message),
        diagnosis=visible(result.diagnosis),
        cause=result.cause,
        refused=result.refused,
        unclaimed=result.unclaimed,
        left_out=result.left_out,
        disagreement=visible(result.disagreement),
        examples=result.examples,
        seconds=round(result.seconds, 3),
        script=script,
        without_script=without_script,
        scenario=drawn,
        timeline=timeline(executor.run(asked, drawn)) if drawn and seen else (),
    )


def _not_run(check: Check) -> CheckReport:
    return CheckReport(check.id, check.level, "not_run", check.property)
