"""What the grade of one submission found, as a value that can be written as JSON and read again.

Nothing here imports torch: a report of progress is on the screen while torch is still being imported.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from conformance.checks.aspect import Aspect
from conformance.grading.marks import RULES, Mark, Outcome, Rules, aspect_from_json, marks, total
from conformance.scenarios.drawn import Drawn, drawn_from_json

if TYPE_CHECKING:
    from conformance.checks.check import Level
    from conformance.judging.run_check import Status

SCHEMA = "pytest-ddp/report/2"
WORLD_SIZE = 4  # ranks of the largest world, unless somebody asks for another number
MAX_EXAMPLES = 10  # scenarios per check, likewise
Verdict: TypeAlias = Literal["passed", "failed", "error", "not_gradable", "not_submitted", "not_graded"]
PASSED, FAILED, NOT_GRADED, HARNESS_ERROR = 0, 1, 2, 3
CAN_BE_CALLED, FROM_SCRATCH = "can_be_called", "written_from_scratch"  # what is asked of a component as a whole
NONE_DEFINED = "define none of the components asked for"
GRADER_ERROR = "an error in the grader, not in the submission:"
NOT_BEFORE = "not run: {} must pass first"
SAME_MISTAKE = "Looks like the same mistake as in {}."
NOT_ENDED = "The grade has not ended: what is not judged yet has no points."
HIDDEN = "a hidden check"  # so the ids of hidden checks begin in a report for students


@dataclass(frozen=True)
class Environment:
    """Where and how a submission was graded.

    Attributes:
        torch, python: their versions.
        backend: the backend of the process groups.
        device: where the tensors are.
        world_size: the number of ranks in the largest world.
        seed: the seed of the grade.
        core_only: whether extended checks were left out.
        isolation: what kept the submission's ranks apart from the rest of the machine; empty if it got none.
        packages: what was installed for the grade, since submissions need it.
    """

    torch: str
    python: str
    backend: str
    device: str
    world_size: int
    seed: int
    core_only: bool = False
    isolation: str = ""
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckReport:
    """What became of one check.

    Attributes:
        id: the name of the check.
        level: core or extended.
        status: passed, failed, error (a fault of the harness), not_gradable (this machine lacks something) or not_run.
        requirement: what the check requires, in a sentence.
        message: what was seen and what was expected, or why the check did not run.
        diagnosis: the known mistake that explains the failure.
        examples: how many scenarios or cases were tried.
        seconds: how long the check took.
        script: the path of a script that shows the failure.
        scenario: the smallest scenario or case that fails.
        behind: the failed check that kept this one from running, if one did.
        in_float32: whether it was judged in float32, since the component does not carry float64.
        timeline: by rank, what happened in the last step of the smallest scenario that fails.
        cause: the same text for failures of one cause; empty if it is not known.
        refused: whether it did not run because the submission raised an exception on purpose.
        unclaimed: whether it did not run because a library does not claim what it is about.
        left_out: what scenarios were left out, and the claims that did so.
        without_script: why its script could not be written, if it could not.
        disagreement: what failed on simulated ranks, and not on real ones, which decide.
    """

    id: str
    level: "Level"
    status: "Status"
    requirement: str
    message: str = ""
    diagnosis: str = ""
    examples: int = 0
    seconds: float = 0.0
    script: str = ""
    scenario: Drawn | None = None
    behind: str = ""
    in_float32: bool = False
    timeline: tuple[tuple[str, ...], ...] = ()
    cause: str = ""
    refused: bool = False
    unclaimed: bool = False
    left_out: tuple[str, ...] = ()
    disagreement: str = ""
    without_script: str = ""

    @property
    def allows_others(self) -> bool:
        """Whether checks that require this one run."""
        return self.status == "passed" or self.unclaimed

    @property
    def is_hidden(self) -> bool:
        """Whether this is a report for students about a hidden check."""
        return self.id.startswith(HIDDEN)

    @property
    def explanation(self) -> tuple[str, ...]:
        """What is wrong, in paragraphs: the cause or the remedy if it is known, what was seen, what is required.

        The first line on an exception, a death or a hang, before the stack, comes before the advice, as does any line
        where the advice fits several causes.
        """
        if self.is_hidden:
            return (self.requirement,)
        found: tuple[str, ...] = (self.diagnosis, self.message)
        first, _, stack = self.message.partition("\n")
        if stack or not self.cause:
            found = (first, self.diagnosis, stack)
        return tuple(paragraph for paragraph in (*found, f"Required: {self.requirement}") if paragraph)

    def to_json(self) -> dict[str, Any]:
        """Return what `json.dumps` takes."""
        return {**vars(self), "scenario": self.scenario.to_json() if self.scenario else None}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Return the report that `to_json` made; raise KeyError or TypeError if the data is something else."""
        scenario = plain["scenario"]
        timeline, left_out = tuple(map(tuple, plain["timeline"])), tuple(plain.get("left_out", ()))
        read = {"scenario": scenario and _drawn_from_json(scenario), "timeline": timeline, "left_out": left_out}
        return cls(**{**plain, **read})


@dataclass(frozen=True)
class ComponentReport:
    """What became of one component. Its status and its points come from its core checks alone.

    Attributes:
        name: the name of the component.
        checks: its checks, in the order in which they run.
        aspects: what its core checks have points for.
        rules: how its points follow from outcomes.
        submitted: whether the submission has the component.
        graded: whether its grade is complete.
        uses_from_torch: torch's own implementations that it uses.
        missing_functions: the adapter functions that are missing, if others of the component are there.
        not_implemented: which adapter function raises NotImplementedError, and where; empty if none does.
        new_processes: whether each run of it needed new processes.
    """

    name: str
    checks: tuple[CheckReport, ...]
    aspects: tuple[Aspect, ...] = ()
    rules: Rules = RULES
    submitted: bool = True
    graded: bool = True
    uses_from_torch: tuple[str, ...] = ()
    missing_functions: tuple[str, ...] = ()
    not_implemented: str = ""
    new_processes: bool = False

    @property
    def core(self) -> list[CheckReport]:
        """The checks that decide."""
        return [check for check in self.checks if check.level == "core"]

    @property
    def unmarked(self) -> list[CheckReport]:
        """The core checks that belong to no aspect."""
        marked = {check for aspect in self.aspects for check in aspect.checks}
        return [check for check in self.core if check.id not in marked]

    @property
    def in_float32(self) -> bool:
        """Whether it was judged in float32, since it does not carry float64."""
        return any(check.in_float32 for check in self.checks)

    @property
    def broken_off(self) -> bool:
        """Whether it is judged in part: its grade has not ended, and some of its checks have."""
        return not self.graded and any(check.status != "not_run" for check in self.checks)

    @property
    def status(self) -> Verdict:
        """The verdict. A fault of the harness or a lack of the machine comes before a failure: nobody loses by it."""
        if not self.graded:
            return "not_graded"
        if not self.submitted:
            return "not_submitted"
        found = {check.status for check in self.core}
        if "error" in found or "not_gradable" in found:
            return "error" if "error" in found else "not_gradable"
        return "failed" if found & {"failed", "not_run"} else "passed"

    @property
    def extended_worth(self) -> str:
        """What its extended checks give."""
        return "bonus points" if self.rules.bonus else "no points"

    @property
    def why_not_submitted(self) -> str:
        """Which function keeps it from being graded, in a sentence; empty if the adapters have none of it."""
        if self.missing_functions:
            return f"The adapters lack {' and '.join(f'`{one}`' for one in self.missing_functions)}."
        return f"{self.not_implemented}." if self.not_implemented else ""

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The mark of each aspect."""
        return marks(self.aspects, {check.id: Outcome(check.status, check.behind) for check in self.core}, self.rules)

    @property
    def points(self) -> float:
        """What the component earned."""
        return total(self.marks, self.rules, [check.status for check in self.checks if check.level == "extended"])

    @property
    def max_points(self) -> float:
        """What the component can earn."""
        return sum(aspect.points for aspect in self.aspects)

    def with_check(self, ended: CheckReport) -> "ComponentReport":
        """Return the report with a new outcome of one of its checks."""
        return replace(self, checks=tuple(ended if check.id == ended.id else check for check in self.checks))

    def to_json(self) -> dict[str, Any]:
        """Return what `json.dumps` takes."""
        return {
            "status": self.status,
            "points": self.points,
            "max_points": self.max_points,
            "aspects": [mark.to_json() for mark in self.marks],
            "rules": asdict(self.rules),
            "uses_from_torch": list(self.uses_from_torch),
            "missing_functions": list(self.missing_functions),
            "not_implemented": self.not_implemented,
            "new_processes": self.new_processes,
            "checks": [check.to_json() for check in self.checks],
        }

    @classmethod
    def from_json(cls, name: str, plain: dict[str, Any]) -> Self:
        """Return the report that `to_json` made; raise KeyError or TypeError if the data is something else."""
        return cls(
            name,
            tuple(map(CheckReport.from_json, plain["checks"])),
            tuple(map(aspect_from_json, plain["aspects"])),
            Rules(**{**plain["rules"], "hidden": tuple(plain["rules"]["hidden"])}),
            submitted=plain["status"] != "not_submitted",
            graded=plain["status"] != "not_graded",
            uses_from_torch=tuple(plain["uses_from_torch"]),
            missing_functions=tuple(plain["missing_functions"]),
            not_implemented=plain["not_implemented"],
            new_processes=plain["new_processes"],
        )


@dataclass(frozen=True)
class Report:
    """What became of one submission.

    Attributes:
        submission: its path or module, as it was given.
        environment: where and how it was graded.
        components: the components that were asked for, in their order.
        finished: whether the grade reached its end.
        not_graded_because: why the submission could not be graded; empty if it could.
        stand_ins: what replaced something that this machine lacks.
        named: whether somebody named these components, so that each of them is asked for.
        harness_failed: whether it could not be graded because of a fault of the harness.
        stopped_because: why a course grades no further components of it; empty if nothing keeps it from that.
    """

    submission: str
    environment: Environment
    components: tuple[ComponentReport, ...]
    finished: bool = True
    not_graded_because: str = ""
    stand_ins: tuple[str, ...] = ()
    named: bool = False
    harness_failed: bool = False
    stopped_because: str = ""

    @property
    def points(self) -> float:
        """What all components together earned."""
        return round(sum(component.points for component in self.components), 2)

    @property
    def max_points(self) -> float:
        """What all components together can earn."""
        return sum(component.max_points for component in self.components)

    @property
    def exit_code(self) -> int:
        """0: every submitted component passed; 1: one failed; 2: one or all could not be graded; 3: our own fault."""
        found = {component.status for component in self.components}
        if "error" in found:
            return HARNESS_ERROR
        if self.not_graded_because or "not_gradable" in found or not found & {"passed", "failed"}:
            return NOT_GRADED
        return FAILED if "failed" in found else PASSED

    def with_component(self, ended: ComponentReport) -> "Report":
        """Return the report with a new state of one of its components."""
        components = (ended if component.name == ended.name else component for component in self.components)
        return replace(self, components=tuple(components))

    def to_json(self) -> dict[str, Any]:
        """Return what `json.dumps` takes."""
        return {
            "submission": self.submission,
            "finished": self.finished,
            "not_graded_because": self.not_graded_because,
            "harness_failed": self.harness_failed,
            "stopped_because": self.stopped_because,
            "named": self.named,
            "environment": dict(vars(self.environment)),
            "stand_ins": list(self.stand_ins),
            "components": {component.name: component.to_json() for component in self.components},
        }

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Self:
        """Return the report that `to_json` made, also after a trip through JSON text.

        Raises:
            KeyError, TypeError: the data is no report.
        """
        return cls(
            plain["submission"],
            _environment(**plain["environment"]),
            tuple(ComponentReport.from_json(*component) for component in plain["components"].items()),
            plain["finished"],
            plain["not_graded_because"],
            tuple(plain["stand_ins"]),
            plain.get("named", False),  # reports of earlier versions do not have these
            plain.get("harness_failed", False),
            plain.get("stopped_because", ""),
        )


def _environment(packages: Sequence[str] = (), **others: Any) -> Environment:
    known = {name: value for name, value in others.items() if name in Environment.__dataclass_fields__}
    return Environment(**known, packages=tuple(packages))  # earlier versions have none, and later ones may have more


def _drawn_from_json(plain: dict[str, Any]) -> Drawn:
    import conformance.components.registry  # noqa: F401, PLC0415  defines the classes of all cases, and imports torch

    return drawn_from_json(plain)


def reports_to_json(reports: Sequence[Report]) -> dict[str, Any]:
    """Return the reports of one grade as what `json.dumps` takes."""
    return {"schema": SCHEMA, "submissions": [report.to_json() for report in reports]}
