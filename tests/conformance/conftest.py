"""Grades submissions on ranks from the same fork servers; each submission gets processes of its own."""

import textwrap
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from conformance.components.registry import COMPONENTS
from conformance.execution.executor import Executor
from conformance.execution.fork_servers import ForkServers, fork_servers, ranks_from
from conformance.grading.events import Reports
from conformance.grading.grade import Grading, grade, grade_check, submitted_components
from conformance.grading.on_demand import Grader
from conformance.grading.report import CheckReport, Report
from conformance.judging.run_check import Result, run_check
from conformance.submissions.location import locate
from pytest_ddp.errors import UsageError


@pytest.fixture(scope="session")
def launcher() -> Iterator[ForkServers]:
    with fork_servers() as server:
        yield server


@pytest.fixture(scope="session")
def sandboxed(launcher: ForkServers) -> ForkServers:
    """Fork servers whose submissions must have sandboxes."""
    servers = ForkServers("require")
    servers._zygotes = launcher._zygotes
    try:
        with ranks_from(servers):
            pass
    except UsageError as refused:
        pytest.skip(str(refused))
    return servers


@pytest.fixture
def one_server(launcher: ForkServers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the command use the session's fork servers instead of starting some."""
    monkeypatch.setattr("conformance.commands.grade.fork_servers", lambda *_, **__: nullcontext(launcher))


@pytest.fixture
def grade_path(launcher: ForkServers, tmp_path: Path) -> Callable[..., Report]:
    """Grade what is at a path; scripts that show failures go to `tmp_path / "repro"`."""

    def run(
        path: str | Path,
        *,
        components=tuple(COMPONENTS),
        seed=1,
        examples=10,
        world_size=3,
        from_scratch=False,
        core=False,
    ) -> Report:
        grading = Grading(seed, world_size, tuple(components), examples, tmp_path / "repro", from_scratch, core)
        (report,) = Reports.of(grade([str(path)], grading, launcher))
        assert not report.not_graded_because, report.not_graded_because
        return report

    return run


@pytest.fixture
def first_failed(launcher: ForkServers, tmp_path: Path) -> Callable[..., CheckReport]:
    """Grade a component at a path until a check fails, and return its report; scripts go to `tmp_path / "repro"`."""

    def run(path: str | Path, component: str, *, seed=1, examples=10, world_size=3) -> CheckReport:
        grading = Grading(seed, world_size, (component,), examples, tmp_path / "repro")
        before: dict[str, CheckReport] = {}
        with ranks_from(launcher) as ranks:
            executor = Executor(ranks, locate(str(path)), str(seed))
            submitted_components(executor, grading.components)
            for check in COMPONENTS[component].checks:
                before[check.id] = report = grade_check(component, check, executor, grading, before)
                if report.status not in {"passed", "not_run"}:
                    return report
        raise AssertionError(f"{path}: every check of {component} passed")

    return run


@pytest.fixture
def checked(launcher: ForkServers, tmp_path: Path) -> Callable[..., CheckReport]:
    """Run one check of a component at a path, after those that it requires; scripts go to `tmp_path / "repro"`."""

    def run(path: str | Path, component: str, check_id: str, *, seed=1, examples=10, world_size=3) -> CheckReport:
        grading = Grading(seed, world_size, (component,), examples, tmp_path / "repro")
        with ranks_from(launcher) as ranks:
            executor = Executor(ranks, locate(str(path)), str(seed))
            submitted = submitted_components(executor, grading.components)
            return Grader(executor, grading, submitted).report(component, check_id)

    return run


@pytest.fixture
def held_to(launcher: ForkServers) -> Callable[..., Result]:
    """Hold a component at a path to one of its checks alone."""

    def hold(path: str | Path, component: str, check_id: str, *, seed=1, examples=10, world_size=3) -> Result:
        check = next(check for check in COMPONENTS[component].checks if check.id == check_id)
        with ranks_from(launcher) as ranks:
            executor = Executor(ranks, locate(str(path)), str(seed))
            return run_check(
                COMPONENTS[component], check, executor, world_size=world_size, seed=seed, examples=examples
            )

    return hold


@pytest.fixture
def submit(tmp_path: Path) -> Callable[..., Path]:
    """Write a submission: the text of its adapters, and further files by name."""

    def write(adapters: str, **files: str) -> Path:
        folder = tmp_path / "submission"
        for name, text in {"adapters": adapters, **files}.items():
            path = folder / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")
        return folder

    return write
