"""The workflows for GitHub are valid, bounded in time, and call the grader with options that it has."""

import shlex
from pathlib import Path

import pytest
import yaml

from conformance.cli import _parser

REPOSITORY = Path(__file__).parents[2]
OURS, CLASSROOM = REPOSITORY / ".github/workflows/test.yml", REPOSITORY / "ci/classroom/grade.yml"


def read(path):
    """Return a workflow. YAML 1.1 takes the key `on` for true."""
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("path", [OURS, CLASSROOM], ids=lambda path: path.name)
def test_a_workflow_is_bounded_and_has_no_secrets(path):
    workflow = read(path)
    assert set(workflow) <= {"name", True, "permissions", "concurrency", "env", "jobs"}
    assert workflow["permissions"] == {"contents": "read"}
    assert "${{ secrets" not in path.read_text()
    (job,) = workflow["jobs"].values()
    assert job["timeout-minutes"] <= 90
    for step in job["steps"]:
        assert set(step) <= {"name", "uses", "with", "run", "if", "timeout-minutes"}
        assert ("uses" in step) != ("run" in step)
        assert "persist-credentials" in step.get("with", {}) or "checkout" not in step.get("uses", "")


def test_our_workflow_runs_what_continuous_integration_runs():
    (job,) = read(OURS)["jobs"].values()
    assert (REPOSITORY / job["steps"][-1]["run"]).is_file()


def test_a_classroom_grades_the_repository_in_little_memory():
    (job,) = read(CLASSROOM)["jobs"].values()
    run = next(step["run"] for step in job["steps"] if step.get("name") == "Grade")
    command, *arguments = shlex.split(run.replace("${COMPONENTS:+", "").replace("}", ""))
    options = _parser().parse_args(["grade", *arguments])
    assert command == "pytest-ddp-grade"
    assert (options.paths, options.small, options.seed) == (["."], True, None)
    assert str(vars(options)["--markdown"]) == "$GITHUB_STEP_SUMMARY"
