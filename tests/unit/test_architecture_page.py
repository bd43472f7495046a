"""docs/architecture.md and CONTRIBUTING.md lead to files and folders that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
_PATH = re.compile(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.py|(?:[a-z_0-9]+/)+)`")


def rows(heading: str) -> list[str]:
    """Return the rows of the table below a heading."""
    section = ARCHITECTURE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("|")][2:]


PLUGIN, _, JUDGE = ARCHITECTURE.partition("\n## conformance")
_PATHS = [
    *(ROOT / "pytest_ddp" / path for path in sorted(set(_PATH.findall(PLUGIN)))),
    *(ROOT / "conformance" / path for path in sorted(set(_PATH.findall(JUDGE)))),
]


@pytest.mark.parametrize("path", _PATHS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_architecture_page_names_paths_of_the_package(path):
    assert path.exists() or list((ROOT / "conformance" / "components").glob(f"*/{path.name}"))


@pytest.mark.parametrize("path", sorted(set(_PATH.findall(CONTRIBUTING))))
def test_contributing_names_paths_that_exist(path):
    found = [ROOT / path, ROOT / "pytest_ddp" / path, ROOT / "conformance" / path]
    found += [ROOT / "tests" / "on_ranks" / path, ROOT / "tests" / "planted" / path]
    assert any(place.exists() for place in found) or list((ROOT / "conformance" / "components").glob(f"*/{path}"))


def test_every_package_is_in_the_table_of_packages():
    for package, page in (("pytest_ddp", PLUGIN), ("conformance", JUDGE)):
        folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        assert folders <= set(re.findall(r"^\| `(\w+)/`", page, re.MULTILINE))


def test_the_page_says_where_to_change_at_least_25_things_and_explains_at_most_25_words():
    assert len(rows("To change X, open Y")) >= 25
    assert 0 < len(rows("Words")) <= 25
