"""A course's own points: read from a TOML file whose mistakes are named with their lines, given without a new grade."""

import json
from dataclasses import replace

import pytest

from conformance.checks.aspect import Aspect
from conformance.cli import main
from conformance.components.registry import COMPONENTS
from conformance.grading.formats.gradescope import to_gradescope
from conformance.grading.formats.html import to_html
from conformance.grading.marks import Rules
from conformance.grading.next_step import next_step
from conformance.grading.report import CheckReport, ComponentReport, Environment, Report, reports_to_json
from conformance.grading.rubric import assigned, default_text, for_students, read_rubric, regraded
from pytest_ddp.errors import UsageError

NAIVE = COMPONENTS["naive_ddp"]
CHECKS = tuple(
    CheckReport(check.id, check.level, "failed" if check.id == "initial_broadcast" else "passed", check.property)
    for check in NAIVE.checks
)
REPORT = Report("x", Environment("2", "3", "gloo", "cpu", 4, 7), (ComponentReport("naive_ddp", CHECKS, NAIVE.aspects),))
RUBRIC = """\
limit = 0.5
[naive_ddp]
bonus = 2
hidden = ["initial_broadcast"]
[naive_ddp.aspects]
"ranks start equal" = { points = 3, essential = true }
"""


@pytest.fixture
def rubric(tmp_path):
    def write(text):
        path = tmp_path / "rubric.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_the_default_rubric_changes_nothing(rubric):
    read = read_rubric(rubric(default_text()))
    assert read.aspects == {name: COMPONENTS[name].aspects for name in assigned()}
    assert regraded(REPORT, read) == REPORT


def test_points_essential_aspects_limit_and_bonus_are_the_rubrics(rubric):
    (component,) = regraded(REPORT, read_rubric(rubric(RUBRIC))).components
    assert (component.points, component.max_points) == (0.5 * 7.5, 7.5)
    assert component.rules == Rules(limit=0.5, bonus=2, hidden=("initial_broadcast",))
    allowed = replace(component, aspects=tuple(replace(one, essential=False) for one in component.aspects))
    assert allowed.points == 4.5 + 2


def test_what_is_hidden_is_not_told_to_students(rubric):
    text = to_gradescope([regraded(REPORT, read_rubric(rubric(RUBRIC)))])
    assert "initial_broadcast" in to_gradescope([REPORT])
    assert "initial_broadcast" not in text
    assert "**a hidden check**: failed" in text


def test_gradescope_names_no_script_that_students_do_not_have():
    checks = (replace(one, script="/tmp/x/repro/script.py") if one.status == "failed" else one for one in CHECKS)
    text = to_gradescope([replace(REPORT, components=(ComponentReport("naive_ddp", tuple(checks), NAIVE.aspects),))])
    assert "initial_broadcast" in text
    assert "script.py" not in text


def test_other_checks_do_not_name_a_hidden_one(rubric):
    first, second, third, *others = (one for one in CHECKS if one.id != "initial_broadcast")
    hidden = replace(first, id="initial_broadcast", status="failed", cause="x", diagnosis="none is sent")
    behind = replace(second, status="not_run", message="not run: initial_broadcast must pass first", behind=hidden.id)
    alike = replace(third, status="failed", cause="x", diagnosis="Looks like the same mistake as in initial_broadcast.")
    component = ComponentReport("naive_ddp", (hidden, behind, alike, *others), NAIVE.aspects)
    report = regraded(replace(REPORT, components=(component,)), read_rubric(rubric(RUBRIC)))
    shown = for_students(report)
    assert "initial_broadcast" not in json.dumps(shown.to_json())
    assert shown.points == report.points
    assert next_step(shown).heading == f"naive_ddp: {alike.id} failed"
    assert "initial_broadcast" not in to_html([shown])
    assert "a hidden check must pass first" in to_html([shown])


def test_points_of_an_earlier_rubric_do_not_stay(rubric):
    dear = read_rubric(rubric('[naive_ddp.aspects]\n"ranks start equal" = { points = 30 }\n'))
    other = read_rubric(rubric("[ddp]\nbonus = 1\n"))
    assert regraded(regraded(REPORT, dear), other) == regraded(REPORT, other)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("limit = 2", "1: limit is a share, from 0 to 1"),
        ("\nnot_judged = 'x'", "2: not_judged is a share"),
        ("[dpd]\nx = 1", "1: no component is called 'dpd'; there are naive_ddp, "),
        ("ddp = 1", "1: ddp is a table"),
        ("limits = 0.4", "1: 'limits' is not known; there are limit, not_judged, and a table for each component"),
        ("[ddp]\nbonus = inf", "2: bonus is a number of points"),
        ("[ddp.aspects]\n'precision' = {points = 1e400}", "2: an aspect is `{ points = 1.5, essential = true }`"),
        ("[ddp]\n\npoints = 1", "3: 'points' is not known; there are aspects, bonus and hidden"),
        ("[ddp]\nbonus = -1", "2: bonus is a number of points"),
        ("[ddp]\nhidden = ['nope']", "2: no check is called 'nope'"),
        (
            "[ddp.aspects]\n'buckets' = {points = 1}",
            "2: no aspect is called 'buckets'; there are 'gradients are averaged'",
        ),
        ("[ddp.aspects]\n'precision' = {point = 1}", "2: an aspect is `{ points = 1.5, essential = true }`"),
        ("limit = x\n", ": Invalid value (at line 1"),
    ],
)
def test_a_mistake_in_a_rubric_is_named_with_its_line(rubric, text, said):
    path = rubric(text)
    with pytest.raises(UsageError) as raised:
        read_rubric(path)
    assert f"{path}:{said}" in str(raised.value) or f"{path}{said}" in str(raised.value)


def test_the_command_prints_a_rubric_that_it_accepts(rubric, capsys):
    assert main(["rubric"]) == 0
    assert main(["rubric", "--check", str(rubric(capsys.readouterr().out))]) == 0
    assert capsys.readouterr().out.endswith("rubric.toml is a rubric\n")


def test_an_earlier_grade_gets_other_points_without_a_run(rubric, tmp_path, capsys):
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps(reports_to_json([REPORT])), encoding="utf-8")
    assert main(["regrade", str(before), "--rubric", str(rubric(RUBRIC)), "--json", str(after)]) == 1
    assert "3.75 / 7.5" in capsys.readouterr().out
    component = json.loads(after.read_text(encoding="utf-8"))["submissions"][0]["components"]["naive_ddp"]
    assert component["points"] == 3.75


def test_what_is_no_report_is_not_regraded(rubric, tmp_path, capsys):
    (tmp_path / "other.json").write_text('{"a": 1}', encoding="utf-8")
    assert main(["regrade", str(tmp_path / "other.json"), "--rubric", str(rubric("limit = 0.5"))]) == 2
    assert "other.json is not a report that `--json` wrote" in capsys.readouterr().err


def test_an_aspect_keeps_what_the_rubric_leaves_out(rubric):
    read = read_rubric(rubric('[ddp.aspects]\n"precision" = { points = 2 }'))
    aspects = {one.name: one for one in read.aspects["ddp"]}
    assert aspects["precision"] == replace(aspects["precision"], points=2.0, essential=False)
    assert isinstance(aspects["gradients are averaged"], Aspect)
    assert aspects["gradients are averaged"].essential
