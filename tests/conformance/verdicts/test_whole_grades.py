"""Whole grades by `pytest-ddp-grade`: what the report holds, and that one submission costs the next nothing."""

import json
import shutil
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.components.registry import BY_DEFAULT
from conformance.grading.report import Report
from conformance.submissions.location import locate

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_report_has_its_schema(tmp_path, capsys):
    out = tmp_path / "report.json"
    arguments = [str(EXAMPLES / "summed_gradients"), "--json", str(out), "--seed", "3", "--repro-dir", str(tmp_path)]
    assert main(["grade", *arguments, "--world-size", "2", "--max-examples", "3"]) == 1
    report = json.loads(out.read_text())
    assert report["schema"] == "pytest-ddp/report/2"
    (report,) = report["submissions"]
    assert (report["submission"], report["finished"]) == (str(EXAMPLES / "summed_gradients"), True)
    assert json.loads(json.dumps(Report.from_json(report).to_json())) == report
    assert set(report["environment"]) >= {"torch", "python", "backend", "device", "world_size", "seed"}
    assert (report["environment"]["world_size"], report["environment"]["seed"]) == (2, 3)
    assert tuple(report["components"]) == BY_DEFAULT
    naive = report["components"]["naive_ddp"]
    assert (naive["status"], naive["points"] < naive["max_points"]) == ("failed", True)
    others = [part["status"] for name, part in report["components"].items() if name != "naive_ddp"]
    assert set(others) == {"not_submitted"}
    keys = {"id", "level", "status", "requirement", "message", "diagnosis", "examples", "seconds", "script"}
    assert all(set(check) >= keys for check in naive["checks"])
    assert {check["status"] for check in naive["checks"]} <= {"passed", "failed", "not_run"}
    shown = capsys.readouterr().out
    assert "summed, not averaged" in shown
    assert "seed 3" in " ".join(shown.split())


def graded_in_one_command(tmp_path, *paths):
    """Return the exit code, and for each submission why it was not graded, its points, and those there are."""
    out = tmp_path / "reports.json"
    asked = ["--components", "naive_ddp", "--world-size", "2", "--max-examples", "1", "--json", str(out)]
    code = main(["grade", *map(str, paths), *asked, "--repro-dir", str(tmp_path / "repro")])
    reports = json.loads(out.read_text())["submissions"]
    naive = [report["components"]["naive_ddp"] for report in reports]
    return code, [
        (report["not_graded_because"], part["status"], part["points"], part["max_points"])
        for report, part in zip(reports, naive, strict=True)
    ]


@pytest.mark.usefixtures("one_server")
def test_submissions_that_cannot_be_graded_cost_the_others_nothing(capsys, submit, tmp_path):
    code, ((absent, *first), (broken, *second), (fine, *third)) = graded_in_one_command(
        tmp_path, "no/such/path", submit("raise ValueError('x\\x1b[2K')"), EXAMPLES / "correct"
    )
    most = first[-1]
    assert code == 2
    assert "no/such/path is no folder" in absent
    assert r"ValueError: x\x1b[2K" in broken, "a terminal would obey it"
    assert first == second == ["not_graded", 0, most]
    assert most > 0
    assert (fine, third) == ("", ["passed", most, most])
    said = capsys.readouterr().err
    assert absent in said
    assert broken in said


@pytest.mark.usefixtures("one_server")
def test_an_error_in_the_grader_in_one_submission_costs_the_next_nothing(capsys, tmp_path, monkeypatch):
    def fails_at_first(path):
        if path == "first":
            raise RuntimeError("a fault of the harness")
        return locate(path)

    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "adapters.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("conformance.grading.grade.locate", fails_at_first)
    code, ((ours, *first), (fine, *second)) = graded_in_one_command(tmp_path, "first", EXAMPLES / "correct")
    assert code == 3
    assert ours.startswith("grading first: an error in the grader, not in the submission:\nTraceback")
    assert first[:2] == ["error", 0]
    assert (fine, second[0]) == ("", "passed")
    assert "RuntimeError: a fault of the harness" in capsys.readouterr().err


def verdicts(report):
    """Return what became of every check of the first component, with every number that was seen."""
    return {check.id: (check.status, check.message, check.scenario) for check in report.components[0].checks}


def test_a_seed_repeats_a_grading_wherever_the_submission_lies(grade_path, tmp_path):
    elsewhere = shutil.copytree(EXAMPLES / "summed_gradients", tmp_path / "elsewhere")
    asked = {"components": ["naive_ddp"], "examples": 2, "world_size": 2}
    here, there, other = (
        verdicts(grade_path(place, seed=seed, **asked))
        for place, seed in ((EXAMPLES / "summed_gradients", 7), (elsewhere, 7), (elsewhere, 8))
    )
    assert here["gradients_averaged"][0] == "failed"
    assert here == there != other
