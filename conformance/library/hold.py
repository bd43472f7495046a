"""Holds a library to one check after the other, on ranks that serve one suite at a time."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from conformance.execution.executor import Executor
from conformance.execution.fork_servers import ForkServers, fork_servers, ranks_from
from conformance.grading.grade import Grading, submitted_components
from conformance.grading.on_demand import Grader
from conformance.grading.report import MAX_EXAMPLES, CheckReport
from conformance.library import scripts
from conformance.library.result import Result
from conformance.library.ruling import Ruling, of_the_whole, rule
from conformance.library.suite import Suite
from conformance.reproduction import files
from conformance.submissions.library import Library
from pytest_ddp.errors import UsageError

RANKS = "_conformance_ranks"  # the fixture of the plugin that gives the ranks


@dataclass
class Held:
    """The suite that is being held to its checks, with its ranks. Another suite gets ranks of its own.

    Attributes:
        seed: selects every scenario and every number.
        world_size: the number of ranks in the largest world.
    """

    launcher: ForkServers
    seed: int
    world_size: int
    _suite: Suite | None = None
    _grader: Grader | UsageError | None = None
    _open: ExitStack = field(default_factory=ExitStack)

    def grader(self, suite: Suite, repro_dir: Path | None) -> Grader:
        """Return what grades the checks of a suite; raise UsageError if its functions cannot be imported."""
        if self._suite is not suite:
            self.close()
            self._suite, self._grader = suite, self._opened(suite, repro_dir)
        if not isinstance(self._grader, Grader):
            raise self._grader or UsageError("the ranks could not be started")
        return self._grader

    def _opened(self, suite: Suite, repro_dir: Path | None) -> Grader | UsageError:
        folder = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="conformance-")))
        library = Library.here(suite.adapters, suite.test_file, suite.libraries)
        location, components = library.write(folder), tuple(suite.checks)
        grading = Grading(
            self.seed, self.world_size, components, MAX_EXAMPLES, repro_dir, claims=suite.claims, library=library
        )
        ranks = self._open.enter_context(ranks_from(self.launcher))
        executor = Executor(ranks, location, secret=str(self.seed))
        named = f"what `verify` names in {suite.test_file.name}, line {suite.line},"
        try:
            return Grader(executor, grading, submitted_components(executor, grading.components, named))
        except UsageError as error:
            return error

    def close(self) -> None:
        """End the ranks of the suite."""
        self._open.close()
        self._suite = self._grader = None


@contextmanager
def held(seed: int, world_size: int) -> Iterator[Held]:
    """Give what holds suites; end its ranks at last."""
    with fork_servers() as launcher:
        one = Held(launcher, seed, world_size)
        try:
            yield one
        finally:
            one.close()


def hold(item: pytest.Item, suite: Suite, component: str, check_id: str, ranks: Held) -> None:
    """Hold a library to one check; end the item as the file of known failures says."""
    __tracebackhide__ = True  # pytest then shows skips at the call of `verify`
    folder = scripts.folder_of(item)
    try:
        grader = ranks.grader(suite, folder)
    except UsageError as error:
        _remove_script(component, check_id, folder)
        pytest.fail(str(error), pytrace=False)
    report = _renamed(grader.verdict(component, check_id), grader.grading.library)
    if report.id != check_id:
        _remove_script(component, check_id, folder)
    known = suite.known.get((component, check_id))
    ruling = rule(report, known, suite.known_name) if report.id == check_id else of_the_whole(report)
    item.user_properties += Result.of(suite, component, check_id, report, ruling).to_properties()
    if suite.known_file and item.config.getoption("update_known_failures"):
        ruling = ruling.updating(suite.known_name)
    _end(ruling, f"{component} {check_id}", _again(item, report, grader) if report.scenario else "")


def _renamed(report: CheckReport, library: Library | None) -> CheckReport:
    """Return a report that calls the functions of a library as `verify` does."""
    if library is None:
        return report
    requirement, message, diagnosis = map(library.renamed, (report.requirement, report.message, report.diagnosis))
    return replace(report, requirement=requirement, message=message, diagnosis=diagnosis)


def _remove_script(component: str, check_id: str, folder: Path | None) -> None:
    """Remove the script of a check that could not be run."""
    if folder:
        files.remove(component, check_id, folder)


def _end(ruling: Ruling, name: str, again: str) -> None:
    """End an item. A reason to skip has the name of the check, which pytest's summary of skipped tests has not."""
    __tracebackhide__ = True
    match ruling.kind:
        case "passed":
            return
        case "known":
            pytest.xfail(ruling.text)
        case "refused" | "unclaimed" | "not_run":
            pytest.skip(f"{name}: {ruling.text}")
        case _:
            pytest.fail(ruling.text + again, pytrace=False)


def _again(item: pytest.Item, report: CheckReport, grader: Grader) -> str:
    """Say how to see a failure again: by its script, and by the same scenarios with the same numbers."""
    asked = f"--ddp-seed={grader.grading.seed} --ddp-world-size={grader.grading.world_size}"
    script = f"See it yourself: python {scripts.shown(report.script)}" if report.script else scripts.NO_FOLDER
    again = f'To repeat it: pytest "{item.nodeid}" {asked}'
    return f"\n\nSmallest scenario: {report.scenario!r}\n{script}\n{again}"
