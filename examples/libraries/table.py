"""Writes docs/libraries.md from JUnit files: what each library claims, and what became of its checks.

    pytest examples/libraries --ddp-world-size=2 --junitxml=results.xml
    python examples/libraries/table.py results.xml [MORE.xml ...]

A suite that is in none of the files keeps its row.
"""

import ast
import re
import sys
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "libraries.md"
_PACKAGES = {"fabric": "lightning-fabric"}
_ROW = re.compile(r"^\| `(test_\w+\.py::test_\w+)` .*\|$", re.MULTILINE)
_HEAD = """\
# Released libraries under `conformance.verify`

[`examples/libraries`](../examples/libraries) has a suite for each of these libraries, as its own maintainers would
write it: a test file, the functions that it names, claims, and a file of known failures ([how](library.md)). All suites
run with 2 ranks over gloo, on CPUs.

- *Asked*: how many checks the library claims and could run. Each of them passed, was refused, or is a known failure.
- *Not claimed*: checks that the claims leave out.
- *Not run*: checks that require another check which failed, or a feature that the library does not have, such as
  `no_sync`.

`python examples/libraries/table.py results.xml` writes this page from JUnit files of these suites.

| suite | version | claims | asked | passed | refused | not claimed | not run | known failures |
|---|---|---|---|---|---|---|---|---|
"""


class Suite(NamedTuple):
    """A call of `verify` in a test file: the texts of its claims and of its file of known failures."""

    name: str
    claims: str
    known_file: Path


def suites():
    """Return all suites, in the order of files and lines."""
    return [one for file in sorted(HERE.glob("test_*.py")) for one in _suites_of(file)]


def _suites_of(file):
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assigned = {one.targets[0].id: one.value for one in tree.body if isinstance(one, ast.Assign)}
    for name, call in assigned.items():
        if name.startswith("test_"):
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            claims = given.get("claims")
            claims = assigned[claims.id] if isinstance(claims, ast.Name) else claims
            text = ", ".join(ast.unparse(one) for one in claims.keywords) if claims else "everything"
            yield Suite(f"{file.name}::{name}", text, HERE / ast.literal_eval(given["known_failures"]))


def counted(junit):
    """Return, by suite, how many items ended in which way, from the properties of their test cases."""
    found = {}
    for case in ET.parse(junit).iter("testcase"):  # noqa: S314  pytest wrote it
        properties = {one.get("name"): one.get("value") for one in case.iter("property")}
        if verdict := properties.get("conformance.verdict"):
            file, test = case.get("classname").rpartition(".")[2], case.get("name").partition("[")[0]
            found.setdefault(f"{file}.py::{test}", Counter())[verdict] += 1
    return found


def known_failures(suite):
    """Return the lines of a suite's file of known failures; none if there is no such file."""
    text = suite.known_file.read_text(encoding="utf-8") if suite.known_file.is_file() else ""
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def _row(suite, counts):
    asked, known = counts.total() - counts["unclaimed"] - counts["not_run"], len(known_failures(suite))
    cells = (asked, *(counts[one] for one in ("passed", "refused", "unclaimed", "not_run")), known)
    return f"| `{suite.name}` | {_version(suite)} | `{suite.claims}` | {' | '.join(map(str, cells))} |"


def _version(suite):
    kind = suite.name.partition(".")[0].removeprefix("test_")
    package = "torch" if kind.startswith("torch") else _PACKAGES.get(kind, kind)
    try:
        return f"{package} {version(package).partition('+')[0]}"
    except PackageNotFoundError:
        return package


def _section(suite):
    lines = [line.split(None, 2) for line in known_failures(suite)]
    rows = "".join(f"| `{component}` `{check}` | {_linked(reason)} |\n" for component, check, reason in lines)
    return f"\n## `{suite.name}`\n\n| known failure | reason |\n|---|---|\n{rows}" if rows else ""


def _linked(reason):
    """Return a reason with a link to the page or the script that shows it on the library alone."""
    shown = re.sub(r"docs/findings/([\w-]+)\.md", r"[\1](findings/\1.md)", reason.replace("|", "\\|"))
    return re.sub(r"examples/libraries/findings/(\w+)\.py", r"[\1](../examples/libraries/findings/\1.py)", shown)


def page(counts, before=""):
    """Return the text of the page; suites without counts keep the row that they had before."""
    kept = {row.group(1): row.group(0) for row in _ROW.finditer(before)}
    rows = [_row(one, counts[one.name]) if one.name in counts else kept.get(one.name) for one in suites()]
    return _HEAD + "".join(f"{row}\n" for row in rows if row) + "".join(map(_section, suites()))


if __name__ == "__main__":
    found = {}
    for file in sys.argv[1:]:
        found |= counted(file)
    PAGE.write_text(page(found, PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""), encoding="utf-8")
