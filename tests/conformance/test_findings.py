"""Each page of `docs/findings` has a script of at most 30 lines; it prints what the page shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.components.registry import COMPONENTS

FOLDER = Path(__file__).parents[2] / "docs" / "findings"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.stem != "index")
INDEX = (FOLDER / "index.md").read_text(encoding="utf-8")
_SCRIPT = re.compile(r"```python\n(.*?)```\n.*?```\n(.*?)```\n", re.DOTALL)
_FOUND = re.compile(r"Found by: `([^`]+)` of the component `(\w+)`")
_MOST_LINES = 30


def _script(page: Path) -> tuple[str, str]:
    (found,) = _SCRIPT.findall(page.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_a_short_script_a_check_and_a_place_in_the_index(page):
    check, component = _FOUND.findall(page.read_text(encoding="utf-8"))[0]
    assert len(_script(page)[0].splitlines()) <= _MOST_LINES
    assert check in {one.id for one in COMPONENTS[component].checks}
    assert f"]({page.name}) | `{component}`: `{check}` |" in INDEX


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_script_prints_what_its_page_shows(page, tmp_path):
    script, shown = _script(page)
    file = tmp_path / "script.py"
    file.write_text(script, encoding="utf-8")
    whole_lines = {**os.environ, "PYTHONUNBUFFERED": ""}
    ran = subprocess.run(
        [sys.executable, file], capture_output=True, text=True, check=False, timeout=120, env=whole_lines
    )
    if "ModuleNotFoundError" in ran.stderr:
        pytest.skip("the library that the page is about is not installed")
    said = [line for line in ran.stdout.splitlines() if line.startswith(("rank", "step"))]  # libraries log there too
    assert sorted(said) == sorted(shown.splitlines()), ran.stderr
