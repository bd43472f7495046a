"""Reports follow from events, survive JSON, and lie in a file that is whole at any time of a grade."""

import dataclasses
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.checks.aspect import Aspect
from conformance.components.registry import COMPONENTS
from conformance.grading.events import (
    CheckEnded,
    ComponentBegan,
    ComponentEnded,
    GradeBegan,
    Reports,
    SubmissionBegan,
    SubmissionEnded,
)
from conformance.grading.formats import FORMATS
from conformance.grading.formats.report_file import ReportFile
from conformance.grading.marks import Rules
from conformance.grading.report import CheckReport, ComponentReport, Environment, Report
from conformance.strategies import Bounds
from pytest_ddp.errors import UsageError

WORDS = st.text(max_size=20)
MANY_WORDS = st.lists(WORDS, max_size=2).map(tuple)
DRAWN = st.sampled_from([check for one in COMPONENTS.values() for check in one.checks]).flatmap(
    lambda check: check.scenarios(Bounds(3, bucketed=False))
)
RULES = st.builds(Rules, st.floats(0, 1), st.floats(0, 1), st.floats(0, 9), MANY_WORDS)
BOOLEANS = st.booleans()


def every(kind, **fields):
    """Draw objects of a dataclass, with all of its fields."""
    assert {one.name for one in dataclasses.fields(kind)} == set(fields)
    return st.builds(kind, **fields)


ENVIRONMENTS = every(
    Environment,
    **dict.fromkeys(("torch", "python", "backend", "device", "isolation"), WORDS),
    **dict.fromkeys(("world_size", "seed"), st.integers()),
    core_only=BOOLEANS,
    packages=MANY_WORDS,
)
CHECKS = every(
    CheckReport,
    **dict.fromkeys(("id", "requirement", "message", "diagnosis", "script", "behind", "cause", "disagreement"), WORDS),
    **dict.fromkeys(("in_float32", "refused", "unclaimed"), BOOLEANS),
    level=st.sampled_from(["core", "extended"]),
    status=st.sampled_from(["passed", "failed", "error", "not_run", "not_gradable"]),
    examples=st.integers(0),
    seconds=st.floats(0, 99),
    scenario=st.none() | DRAWN,
    timeline=st.lists(MANY_WORDS, max_size=2).map(tuple),
    left_out=MANY_WORDS,
    without_script=WORDS,
)


def aspects(checks):
    core = st.lists(st.sampled_from([check.id for check in checks] or ["absent"]), min_size=1, max_size=2).map(tuple)
    return st.lists(st.builds(Aspect, WORDS, st.floats(0, 9), core, st.booleans()), max_size=2).map(tuple)


@st.composite
def component_reports(draw, name):
    submitted, graded = draw(st.sampled_from([(True, True), (True, False), (False, True)]))
    checks = tuple(draw(st.lists(CHECKS, max_size=2)))
    found = every(
        ComponentReport,
        **dict.fromkeys(("uses_from_torch", "missing_functions"), MANY_WORDS),
        name=st.just(name),
        checks=st.just(checks),
        aspects=aspects(checks),
        rules=RULES,
        submitted=st.just(submitted),
        graded=st.just(graded),
        not_implemented=WORDS,
        new_processes=BOOLEANS,
    )
    return draw(found)


@st.composite
def reports(draw):
    components = [draw(component_reports(name)) for name in draw(st.lists(WORDS, max_size=2, unique=True))]
    found = every(
        Report,
        **dict.fromkeys(("submission", "not_graded_because", "stopped_because"), WORDS),
        **dict.fromkeys(("finished", "named", "harness_failed"), BOOLEANS),
        environment=ENVIRONMENTS,
        components=st.just(tuple(components)),
        stand_ins=MANY_WORDS,
    )
    return draw(found)


@given(reports())
def test_a_report_survives_json(report):
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report


ENVIRONMENT = Environment("2", "3", "gloo", "cpu", 2, 1)
FIRST, SECOND = (CheckReport(name, "core", "not_run", "It is right.") for name in ("first", "second"))
ASPECTS = (Aspect("right", 2, ("first", "second")),)
PLANNED = Report(
    "x",
    ENVIRONMENT,
    tuple(ComponentReport(name, (FIRST, SECOND), ASPECTS, graded=False) for name in ("one", "two")),
    finished=False,
)
RIGHT = replace(FIRST, status="passed")
BEGAN = (GradeBegan((PLANNED, replace(PLANNED, submission="y"))), SubmissionBegan("x"), ComponentBegan("one", 2))
ONE = ComponentReport("one", (RIGHT, replace(SECOND, status="failed")), ASPECTS)


def summary(report):
    checks = [[check.status for check in component.checks] for component in report.components]
    return report.finished, [component.status for component in report.components], checks


def test_before_it_begins_a_grade_has_all_its_checks():
    for report in Reports.of(BEGAN):
        assert summary(report) == (False, ["not_graded"] * 2, [["not_run"] * 2] * 2)
        assert [component.max_points for component in report.components] == [2, 2]


def test_checks_count_as_soon_as_they_end_and_their_component_when_all_have():
    found, other = Reports.of([*BEGAN, CheckEnded("one", RIGHT)])
    assert summary(found) == (False, ["not_graded"] * 2, [["passed", "not_run"], ["not_run"] * 2])
    assert found.components[0].points == 1
    found, other = Reports.of([*BEGAN, ComponentEnded(ONE)])
    assert summary(found)[1] == ["failed", "not_graded"]
    assert other.submission == "y"
    assert not other.finished


def test_a_submission_that_cannot_be_graded_says_why():
    found, _ = Reports.of([*BEGAN, SubmissionEnded("it does not import", stand_ins=("package triton",))])
    assert (found.not_graded_because, found.stand_ins) == ("it does not import", ("package triton",))
    assert summary(found)[:2] == (True, ["not_graded"] * 2)
    assert found.exit_code == 2


def test_an_error_in_the_grader_costs_no_verdict_that_was_there():
    found, _ = Reports.of([*BEGAN, ComponentEnded(ONE), SubmissionEnded("a fault", harness_failed=True)])
    assert summary(found) == (True, ["failed", "error"], [["passed", "failed"], ["error", "error"]])
    assert found.exit_code == 3


@pytest.fixture
def written(tmp_path):
    """A report file, and a function that lets it hear events and returns what the file holds."""
    path, collected = tmp_path / "new" / "report.json", Reports()
    file = ReportFile(path, FORMATS[0], collected)

    def hear(*events):
        for event in events:
            collected(event)
            file(event)
        return json.loads(path.read_text(encoding="utf-8"))

    hear.path = path
    return hear


def test_the_file_is_there_from_the_beginning_and_follows_each_component(written):
    assert [report["finished"] for report in written(BEGAN[0])["submissions"]] == [False, False]
    assert written(*BEGAN[1:], CheckEnded("one", RIGHT))["submissions"][0]["components"]["one"]["points"] == 0
    found = written(ComponentEnded(ONE))["submissions"][0]
    assert found["components"]["one"]["points"] == 1
    assert [found["finished"], written(SubmissionEnded())["submissions"][0]["finished"]] == [False, True]
    assert list(written.path.parent.iterdir()) == [written.path], "no temporary file is left"


def test_a_file_that_is_read_meanwhile_is_a_whole_one(written):
    written(BEGAN[0])
    with written.path.open(encoding="utf-8") as before:
        written(*BEGAN[1:], ComponentEnded(ONE))
        assert json.load(before)["submissions"][0]["components"]["one"]["status"] == "not_graded"


def test_the_file_may_be_a_link_or_a_device(written, tmp_path):
    target = tmp_path / "target.json"
    written.path.parent.mkdir()
    written.path.symlink_to(target)
    written(BEGAN[0])
    assert written.path.is_symlink()
    assert target.is_file()
    collected = Reports()
    collected(BEGAN[0])
    ReportFile(type(tmp_path)("/dev/null"), FORMATS[0], collected).write()


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    file = ReportFile(tmp_path / "file" / "report.json", FORMATS[0], Reports())
    with pytest.raises(UsageError, match=r"--json .*/file/report.json: File exists: .*/file$"):
        file.write()
