"""The suites of released libraries in `examples/libraries`: each runs where its library is, and each has its place."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "libraries"
FILES = sorted(FOLDER.glob("test_*.py"))
SCRIPTS = sorted((FOLDER / "findings").glob("*.py"))
_MOST_LINES = 30
_SHOWN = re.compile(r"(docs/findings/[\w-]+\.md|examples/libraries/findings/\w+\.py): ")


def _table():
    """Return the module that writes the page; it is no test module, and stands beside the suites."""
    spec = importlib.util.spec_from_file_location("table", FOLDER / "table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = _table()
SUITES = TABLE.suites()


@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.name)
def test_each_known_failure_names_a_script_that_shows_it(suite):
    for line in TABLE.known_failures(suite):
        _, _, reason = line.split(None, 2)
        found = _SHOWN.match(reason)
        assert found, f"{suite.known_file.name}: {line}"
        assert (ROOT / found[1]).is_file()


def test_the_page_has_each_suite_and_each_known_failure():
    text = TABLE.PAGE.read_text(encoding="utf-8")
    assert text == TABLE.page({}, text)
    assert all(f"| `{suite.name}` |" in text for suite in SUITES)


def test_each_file_of_known_failures_belongs_to_a_suite():
    assert {*(FOLDER / "known").glob("*.txt")} <= {suite.known_file for suite in SUITES}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_is_short_and_needs_the_library_alone(script):
    text = script.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= _MOST_LINES
    assert "conformance" not in text


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_shows_that_the_library_is_wrong(script):
    ran = _run(str(script))
    if "ModuleNotFoundError" in ran.stderr:
        pytest.skip("the library is not installed")
    assert "wrong" in ran.stdout, ran.stderr


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_library_is_as_its_known_failures_say(file):
    ran = _run("-m", "pytest", "-p", "no:cacheprovider", "-q", "--ddp-world-size=2", str(file))
    if ran.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
        pytest.skip("the library is not installed")
    assert ran.returncode == pytest.ExitCode.OK, ran.stdout


def _run(*arguments):
    """Run Python at the root of the repository."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)
