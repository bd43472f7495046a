"""Files of a submission never become part of the grader, also if it is started in the submission's own folder."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONSOLE_SCRIPT = ["-P", "-c", "import sys; from conformance.cli import main; sys.exit(main())"]
WRONG = """
    def ddp_overhead(s, w, o, n_b): return 0.0
    def optimal_bucket_size(s, w, o): return 0.0
    """
PLANTED = "raise SystemExit('planted, and imported by the grader')"
PLANTS = dict.fromkeys(("queue", "profile", "conftest", "sitecustomize", "triton", "rich__console"), PLANTED)


def run_inside(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, as the console scripts of an installed grader do."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("start", "plants"),
    [
        pytest.param(CONSOLE_SCRIPT, {**PLANTS, "conformance____main__": PLANTED}, id="console script"),
        pytest.param(["-m", "conformance"], PLANTS, id="python -m", marks=pytest.mark.long),
    ],
)
def test_what_is_planted_in_the_folder_is_not_imported(submit, start, plants):
    folder = submit(WRONG, **plants)
    (folder / "pyproject.toml").write_text('[tool.pytest]\naddopts = ["-p", "no:ddp_conformance"]')
    run = run_inside(folder, *start, ".", "--core", "--components", "overhead_model", "--world-size", "2")
    assert run.returncode == 1, run.stdout + run.stderr
    assert "overhead_model failed, 0 of" in run.stderr
    assert "planted" not in run.stdout + run.stderr


def test_the_console_script_is_the_command_line():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"]["pytest-ddp-grade"] == "conformance.cli:main"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("conftest.py", ""),
        ("pytest.ini", "[pytest]\nconsole_output_style = count"),
        ("pyproject.toml", "[tool.pytest]\nlog_cli = true"),
    ],
)
def test_pytest_does_not_run_with_the_configuration_of_the_submission(pytester, name, text):
    pytester.path.joinpath("adapters.py").touch()
    pytester.path.joinpath(name).write_text(text)
    command = "--pyargs", "conformance", "--ddp-submission=.", "--collect-only", "-q", "-k", "overhead"
    refused = pytester.runpytest(*command)
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines([f"*{name} is the submission's, and would change how it is graded.*"])
    assert pytester.runpytest("-c", os.devnull, "--noconftest", *command).ret == pytest.ExitCode.OK
