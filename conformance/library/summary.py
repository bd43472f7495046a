"""What a run of suites found, for CI: a summary in Markdown, and annotations in the log of GitHub Actions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conformance.grading.formats.github import MOST, annotation
from conformance.library.result import Result

_SECTIONS = {
    "new": "New failures, which the file of known failures does not list",
    "mended": "Known failures that are none any more: delete their lines",
    "error": "Not judged, because of an error",
    "known": "Known failures",
    "refused": "Refused, which the library may",
    "unclaimed": "Not claimed",
    "not_run": "Not run",
}
_RED = ("new", "mended", "error")


@dataclass(frozen=True)
class Item:
    """One item that has run: the result, and where pytest shows it.

    Attributes:
        result: what became of it.
        suite: the node id of the test, without parameters.
        file: the test file, relative to the root of the run.
        line: the line of the call of `verify`; the first one is 1.
    """

    result: Result
    suite: str
    file: str
    line: int

    @property
    def name(self) -> str:
        """The component and the check, as in the file of known failures."""
        return f"{self.result.component} {self.result.check}"


def to_markdown(items: Sequence[Item]) -> str:
    """Return the summary: for each suite, what is new against its file of known failures, and all that did not pass."""
    suites = dict.fromkeys(item.suite for item in items)
    return "\n".join(line for suite in suites for line in _suite_lines([one for one in items if one.suite == suite]))


def _suite_lines(items: Sequence[Item]) -> Iterator[str]:
    passed = [item for item in items if item.result.verdict == "passed"]
    asked = [item for item in items if item.result.verdict not in {"unclaimed", "not_run"}]
    yield f"## {items[0].suite}: {len(passed)} of {len(asked)} checks passed\n"
    if not any(item.result.verdict in _RED for item in items):
        yield "Nothing is new against the file of known failures.\n"
    for verdict, title in _SECTIONS.items():
        yield from _section(title, [(one.name, _told(one.result)) for one in items if one.result.verdict == verdict])
    narrowed = [(one.name, one.result.left_out) for one in passed if one.result.left_out]
    yield from _section("Passed without the scenarios that are not claimed", narrowed)


def _told(result: Result) -> str:
    """Return why an item ended so; after a new failure, also how to see it."""
    shows = f" (`python {result.script}`)" if result.verdict == "new" and result.script else ""
    return f"{result.text}{shows}"


def _section(title: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield f"### {title}: {len(rows)}\n\n| check | |\n|---|---|"
        yield from (f"| `{name}` | {_cell(text)} |" for name, text in rows)
        yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def annotations(items: Sequence[Item]) -> Iterator[str]:
    """Yield a command for each item that makes the run red, ten at most: GitHub shows no more of a step."""
    red = [item for item in items if item.result.verdict in _RED]
    for item in red[:MOST]:
        yield annotation("error", item.name, item.result.text, file=item.file, line=item.line)
