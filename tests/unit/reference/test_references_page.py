"""The page about the references leads to every one of them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "references.md"
# What the files on the page are made of, and the adapters' own tables.
PARTS = {"__init__", "adapters"}


def linked() -> set[Path]:
    return {(PAGE.parent / link).resolve() for link in re.findall(r"\]\((\.\./[^)]+\.py)\)", PAGE.read_text())}


def test_its_links_lead_somewhere():
    assert linked()
    assert [path for path in linked() if not path.is_file()] == []


def test_no_reference_is_left_out():
    text = PAGE.read_text()
    modules = {path.stem for path in (ROOT / "reference").glob("*.py")} - PARTS
    assert {module for module in modules if f"`{module}`" not in text} == set()
