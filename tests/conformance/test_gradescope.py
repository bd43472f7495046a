"""The autograder for Gradescope: its results are valid whatever becomes of the grade."""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.grading.formats.gradescope import to_gradescope
from tests.conformance.test_formats import REFUSED, REPORT

REPOSITORY = Path(__file__).parents[2]
FORMATS = {"text", "html", "simple_format", "md", "ansi"}
VISIBILITIES = {"hidden", "after_due_date", "after_published", "visible"}
# The documented fields, each with its type or its values.
OF_RESULTS = {
    "score": (int, float),
    "execution_time": (int, float),
    "output": str,
    "output_format": FORMATS,
    "test_output_format": FORMATS,
    "test_name_format": FORMATS,
    "visibility": VISIBILITIES,
    "stdout_visibility": VISIBILITIES,
    "extra_data": dict,
    "tests": list,
    "leaderboard": list,
}
OF_A_TEST = {
    "score": (int, float),
    "max_score": (int, float),
    "status": {"passed", "failed"},
    "name": str,
    "name_format": FORMATS,
    "number": str,
    "output": str,
    "output_format": FORMATS,
    "tags": list,
    "visibility": VISIBILITIES,
    "extra_data": dict,
}
# Grades as `pytest-ddp-grade` does, until the first check of `loader_generator`: there it dies as if it were killed.
DIES = """
import os, signal, sys
from conformance.cli import main
from conformance.grading import grade
judge = grade.run_check
def dying(component, *others, **options):
    if component.name == "loader_generator":
        os.kill(os.getpid(), signal.SIGKILL)
    return judge(component, *others, **options)
grade.run_check = dying
sys.exit(main(sys.argv[1:]))
"""


def check(fields, documented):
    """Assert that only documented fields are there, with documented values."""
    assert set(fields) <= set(documented)
    for name, value in fields.items():
        allowed = documented[name]
        assert value in allowed if isinstance(allowed, set) else isinstance(value, allowed), name


def valid(text):
    """Return results; assert that Gradescope would take them."""
    results = json.loads(text)
    check(results, OF_RESULTS)
    assert "score" in results or any("score" in test for test in results["tests"])
    for test in results["tests"]:
        check(test, OF_A_TEST)
        assert all(isinstance(tag, str) for tag in test.get("tags", []))
    return results


@pytest.mark.parametrize(
    "reports",
    [[], [REPORT], [replace(REPORT, finished=False)], [REFUSED, REPORT], [replace(REFUSED, components=())]],
    ids=["nothing yet", "graded", "cut off", "one refused", "nothing defined"],
)
def test_only_documented_fields_are_written(reports):
    valid(to_gradescope(reports))


@pytest.fixture
def autograder(tmp_path):
    """Lay the folders that Gradescope has, with a grader of ours; run the autograder and return its results."""

    def run(grader, *, files, course=""):
        for name in ("source", "submission", "results"):
            (tmp_path / name).mkdir(exist_ok=True)
        for name, text in files.items():
            path = tmp_path / "submission" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (tmp_path / "source" / "course.env").write_text(course)
        program = tmp_path / "grader"
        program.write_text(f"#!/usr/bin/env bash\n{grader}\n")
        program.chmod(0o755)
        environment = {
            **os.environ,
            "AUTOGRADER_ROOT": str(tmp_path),
            "GRADER": str(program),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [REPOSITORY / "ci" / "gradescope" / "run_autograder"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        return valid((tmp_path / "results" / "results.json").read_text()), ended.stdout

    return run


def test_a_grader_that_fails_is_not_the_fault_of_the_submission(autograder):
    results, said = autograder("echo no torch; exit 3", files={"adapters.py": ""})
    assert results["score"] == 0
    assert results["output"].startswith("The grader failed before it judged anything.")
    assert "ask the staff" in results["output"]
    assert said == "no torch\nrun_autograder: the grader ended with exit code 3\n"


def test_a_course_names_components_and_a_seed(autograder, tmp_path):
    _, said = autograder('echo "$@"', files={"adapters.py": ""}, course="COMPONENTS=fsdp\nSEED=4\n")
    asked = shlex.split(said.splitlines()[0])
    assert Path(asked[1]) == tmp_path / "submission"
    assert asked[2:5] == ["--small", "--gradescope", str(tmp_path / "results" / "results.json")]
    assert asked[-4:] == ["--components", "fsdp", "--seed", "4"]


def test_a_grade_that_takes_too_long_keeps_what_is_judged(autograder, tmp_path, monkeypatch):
    stand_in = tmp_path / "timeout"
    stand_in.write_text('#!/usr/bin/env bash\necho "$1 $2 $3"\n"${@:4}"\nexit 124\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    judged = """printf '{"score": 5, "tests": [{"name": "judged", "score": 5}]}' > "$5" """
    results, said = autograder(judged, files={"adapters.py": ""}, course="LIMIT_SECONDS=7\n")
    assert results["score"] == 5
    assert said == "--signal=INT --kill-after=10 7\nrun_autograder: the grader ended with exit code 124\n"


KILLED = """printf '{"score": 0, "output": "The grade has not ended", "tests": []}' > "$5"; exit 137 """


@pytest.mark.parametrize(
    ("limit", "said"), [(60, "The grader failed before it judged anything."), (0, "The grade has not ended")]
)
def test_a_grader_that_is_killed_before_it_judged_anything_is_our_fault_unless_time_is_up(autograder, limit, said):
    results, _ = autograder(KILLED, files={"adapters.py": ""}, course=f"LIMIT_SECONDS={limit}\n")
    assert results["output"].startswith(said)


@pytest.mark.parametrize(
    ("course", "rubric", "asked"),
    [
        ("", False, "--components ddp_individual_parameters,ddp_bucketed,sharded_optimizer"),
        ("", True, "--rubric"),
        ("COMPONENTS=fsdp\n", True, "--components fsdp --rubric"),
    ],
)
def test_a_rubric_names_the_components_unless_the_course_does(autograder, tmp_path, course, rubric, asked):
    (tmp_path / "source").mkdir(exist_ok=True)
    if rubric:
        (tmp_path / "source" / "rubric.toml").write_text("[fsdp]\n")
    _, said = autograder('echo "$@"', files={"adapters.py": ""}, course=course)
    assert said.splitlines()[0].partition("/repro ")[2].startswith(asked)


def test_what_was_judged_counts_if_the_grader_is_killed(autograder):
    adapters = """
def ddp_overhead(s, w, o, n_b):
    return (s / n_b) / w + n_b * o


def optimal_bucket_size(s, w, o):
    return (s * w * o) ** 0.5


def get_ddp_generator(seed):
    import torch

    return torch.Generator()
"""
    grader = f'exec {shlex.quote(sys.executable)} -c {shlex.quote(DIES)} "$@" --max-examples 1'
    course = "COMPONENTS=overhead_model,loader_generator\nSEED=1\n"
    results, said = autograder(grader, files={"a1/adapters.py": adapters}, course=course)
    assert "exit code 137" in said
    scores = {test["name"]: (test["score"], test["max_score"]) for test in results["tests"]}
    judged = [score for name, score in scores.items() if name.startswith("overhead_model: ")]
    assert scores["loader_generator"] == (0.0, 3)
    assert results["score"] == sum(points for points, _ in judged) == sum(most for _, most in judged) > 0
    assert results["output"].startswith("The grade has not ended: what is not judged yet has no points.")
