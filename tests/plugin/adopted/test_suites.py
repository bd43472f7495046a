"""The suites in examples/suites run on warm ranks with few changed lines, with the outcomes of their launchers."""

import difflib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUITES = Path(__file__).parents[3] / "examples" / "suites"
MOST_CHANGES = 5
NO_NEIGHBOURS = ["-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:randomly", "-p", "no:rerunfailures"]
LAUNCHED = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "pytest", "-p", "no:ddp"]
REPLACED = {"composer_like": ("conftest.py", "pytest.ini"), "deepspeed_like": ("pytest.ini",)}


def new_version(suite: str, name: str) -> Path:
    return SUITES / suite / {"conftest.py": "conftest_adopted.py", "pytest.ini": "adopted.ini"}[name]


@pytest.fixture
def folder(pytester, request):
    """A copy of the suite that the test is about."""
    copy = pytester.path / request.param
    shutil.copytree(SUITES / request.param, copy)
    return copy


def outcomes(folder: Path, *command: str) -> list[dict[str, int]]:
    """Run the suite; return the counts of each process's last line."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, *command, "-q", *NO_NEIGHBOURS, "--rootdir", str(folder)]
    run = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in run.stdout.splitlines() if re.search(r" in [\d.]+s", line)]
    assert lines, run.stdout + run.stderr
    return [
        {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", line)} for line in lines
    ]


@pytest.mark.parametrize("suite", REPLACED)
def test_few_lines_change(suite):
    changed = 0
    for name in REPLACED[suite]:
        texts = ((SUITES / suite / name).read_text(), new_version(suite, name).read_text())
        changed += sum(line.startswith("+ ") for line in difflib.ndiff(*(text.splitlines() for text in texts)))
    assert 0 < changed <= MOST_CHANGES


@pytest.mark.parametrize(
    "folder",
    [pytest.param(suite, marks=[pytest.mark.long] if number else []) for number, suite in enumerate(REPLACED)],
    indirect=True,
)
def test_a_suite_runs_on_warm_ranks(folder):
    for name in REPLACED[folder.name]:
        shutil.copy(new_version(folder.name, name), folder / name)
    assert outcomes(folder, "-m", "pytest", "-W", "error") == [{"passed": 29, "skipped": 1}]


@pytest.mark.long
@pytest.mark.parametrize("folder", ["composer_like"], indirect=True)
def test_the_launcher_has_the_same_outcomes(folder):
    assert outcomes(folder, *LAUNCHED) == [{"passed": 25, "skipped": 1}] * 2
    assert outcomes(folder, "-m", "pytest", "-p", "no:ddp") == [{"passed": 4}]


@pytest.mark.long
@pytest.mark.parametrize("folder", ["deepspeed_like"], indirect=True)
def test_its_own_harness_has_the_same_outcomes(folder):
    assert outcomes(folder, "-m", "pytest", "-p", "no:ddp") == [{"passed": 29, "skipped": 1}]
