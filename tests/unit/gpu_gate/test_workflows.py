"""The pipelines for GitHub, GitLab and Buildkite call the gate with options that it has, and trust no candidate."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from pytest_ddp.gpu_gate.cli import _parser
from pytest_ddp.gpu_gate.policy import Policy

ROOT = Path(__file__).parents[3]
OURS, GITHUB = ROOT / ".github/workflows/gpu.yml", ROOT / "ci/github/tests.yml"
GITLAB, BUILDKITE = ROOT / "ci/gitlab/tests.yml", ROOT / "ci/buildkite/pipeline.yml"
FILES = [OURS, GITHUB, GITLAB, BUILDKITE, ROOT / "ci/Dockerfile", ROOT / "ci/gpu_gate"]


def commands(path: Path) -> list[str]:
    """Return the commands of the GPU lane."""
    content = yaml.safe_load(path.read_text())
    if path == GITLAB:
        return content["gpu"]["script"]
    if path == BUILDKITE:
        return [content["steps"][1]["command"].replace("$$", "$").replace("\\\n", " ")]
    return [step["run"] for step in content["jobs"]["gpu"]["steps"] if "run" in step]


@pytest.mark.parametrize("path", [GITHUB, GITLAB, BUILDKITE], ids=lambda path: path.parent.name)
def test_the_gate_is_called_with_options_that_it_has(path):
    (command,) = (each for each in commands(path) if "pytest-ddp-gpu-gate" in each)
    call = re.search(r"bin/pytest-ddp-gpu-gate\"? (.*?)(\|\| status|$)", command, re.DOTALL)[1]
    options = _parser().parse_args(shlex.split(call))
    assert (options.gpus, options.min_executed, options.pytest) == (1, 40, ["-m", "gpu", "-p", "no:cacheprovider"])
    assert str(options.quarantine).endswith("base/ci/quarantine.toml")
    python = shlex.split(options.python)
    assert (python[:3], python[-2:]) == (["docker", "run", "--rm"], ["gpu-tests", "python"])
    assert python[python.index("--network") + 1] == "none"
    assert {"{run}:{run}", "{candidate}:/candidate"} == {
        python[place + 1] for place, word in enumerate(python) if word == "--volume"
    }


def test_the_script_of_this_repository_runs_the_lane_in_the_same_container():
    """`ci/gpu_gate --docker` and the file to copy do not drift apart."""
    text = (ROOT / "ci/gpu_gate").read_text()
    call = re.search(r"set -- --python \"(.*?)\"", text, re.DOTALL)[1]
    template = re.search(r"docker run.*? gpu-tests python", GITHUB.read_text(), re.DOTALL)[0]
    assert [word for word in shlex.split(call) if word not in {"--pids-limit", "4096"}] == [
        "pytest-ddp-gpu" if word == "gpu-tests" else word for word in shlex.split(template)
    ]
    final = text[text.index("pytest_ddp.gpu_gate --candidate") :].replace("\\\n", " ").replace('"$@"', "")
    options = _parser().parse_args(shlex.split(final)[1:])
    assert options.pytest == ["tests/gpu", "-p", "no:cacheprovider"]


@pytest.mark.parametrize("path", [OURS, GITHUB], ids=lambda path: path.name)
def test_a_workflow_gives_the_candidate_no_secret_no_token_and_no_cache(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert set(workflow[True]) == {"pull_request_target", "push"}  # YAML 1.1 takes the key `on` for true
    assert "secrets" not in re.sub("#.*", "", path.read_text())
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 60
        for step in job["steps"]:
            action = step.get("uses", "")
            assert "cache" not in action
            assert "checkout" not in action or step["with"]["persist-credentials"] is False
    assert workflow["jobs"]["gpu"]["environment"] == "gpu"
    base, candidate = (step["with"] for step in workflow["jobs"]["gpu"]["steps"][:2])
    assert (base["path"], "ref" in base, candidate["path"]) == ("base", False, "candidate")
    assert not [run for run in commands(path) if "${{" in run]  # an expression would paste text into the shell


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_file_names_the_host_of_a_registry(path):
    assert "://" not in path.read_text()
    assert "index-url" not in path.read_text()


def test_actionlint_accepts_the_workflows():
    if (actionlint := shutil.which("actionlint")) is None:
        pytest.skip("actionlint is not installed")
    files = [*(ROOT / ".github/workflows").glob("*.yml"), GITHUB, ROOT / "ci/classroom/grade.yml"]
    command = [actionlint, "-config-file", str(ROOT / ".github/actionlint.yaml"), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_page_shows_the_file_to_copy():
    page = (ROOT / "docs/ci.md").read_text()
    assert f"```yaml\n{GITHUB.read_text()}```\n" in page


def test_the_pages_quarantine_file_is_valid(tmp_path):
    page = (ROOT / "docs/ci.md").read_text()
    path = tmp_path / "quarantine.toml"
    path.write_text(re.search(r"```toml\n(.*?)```", page, re.DOTALL)[1])
    policy = Policy.read(path, 1)
    assert (len(policy.flaky), len(policy.skips)) == (1, 1)


def test_the_page_names_all_options():
    page = (ROOT / "docs/ci.md").read_text()
    options = {option for action in _parser()._actions for option in action.option_strings if option != "-h"}
    assert [option for option in sorted(options - {"--help"}) if option not in page] == []


def test_every_test_of_the_lane_is_marked_and_no_other_is():
    marked = {path for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.gpu" in path.read_text()}
    assert marked - {Path(__file__)} == set((ROOT / "tests/gpu").glob("test_*.py"))


def test_this_projects_skips_name_tests_that_exist():
    for entry in Policy.read(ROOT / "ci/quarantine.toml", 1).skips:
        file, _, name = entry.test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()
