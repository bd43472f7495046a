"""The page about the references links to every file."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "references.md"
COMMANDS = {ROOT / "reference" / "demo.py", ROOT / "reference" / "train.py"}  # they only call a module that is listed


def linked() -> set[Path]:
    return {(PAGE.parent / link).resolve() for link in re.findall(r"\]\((\.\./[^)]+\.py)\)", PAGE.read_text())}


def test_its_links_lead_to_files():
    assert linked()
    assert [path for path in linked() if not path.is_file()] == []


def test_no_reference_is_left_out():
    modules = {path for path in (ROOT / "reference").rglob("*.py") if path.name != "__init__.py"} - COMMANDS
    assert modules - linked() == set()
