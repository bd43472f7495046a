"""The reports of a library's CI: what becomes of the items of suites, taken in one by one, written at the end."""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from conformance.grading.formats.github import in_actions
from conformance.library.known_failures import Change, updated
from conformance.library.result import Result
from conformance.library.summary import Item, annotations, to_markdown

_STEP_SUMMARY = "GITHUB_STEP_SUMMARY"  # names the file to which a step of GitHub Actions adds Markdown


@dataclass
class Reports:
    """The items that have run, and what is written about them."""

    _items: list[Item] = field(default_factory=list)
    _updated: bool = False
    _written: list[str] = field(default_factory=list)

    def add(self, report: pytest.TestReport) -> None:
        """Take in what became of an item."""
        if report.when == "call" and (result := Result.from_properties(report.user_properties)):
            file, line, _ = report.location
            self._items.append(Item(result, report.nodeid.partition("[")[0], file, (line or 0) + 1))

    def write(self, *, updates: bool, summary: Path | None) -> None:
        """Write the files of known failures, if asked for, and the summary, also where GitHub Actions shows it."""
        self._updated = updates
        if updates:
            for file in dict.fromkeys(item.result.known_file for item in self._items if item.result.known_file):
                self._update(file)
        if summary:
            summary.write_text(to_markdown(self._items), encoding="utf-8")
        if in_actions() and (step := os.environ.get(_STEP_SUMMARY)):
            with Path(step).open("a", encoding="utf-8") as shown:
                shown.write(to_markdown(self._items))

    @property
    def lines(self) -> Iterator[str]:
        """Yield what to print: the files that were written, and in GitHub Actions the annotations."""
        yield from self._written
        folders = Counter(Path(item.result.script).parent for item in self._items if item.result.script)
        yield from (f"Scripts that show failures: {count}, in {folder}" for folder, count in folders.items())
        if in_actions() and not self._updated:
            yield from annotations(self._items)

    def _update(self, file: Path) -> None:
        found = [item.result for item in self._items if item.result.known_file == file]
        changes = [Change(one.component, one.check, one.verdict, one.reason) for one in found]
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        new, added, deleted = updated(text, changes)
        if new != text:
            file.write_text(new, encoding="utf-8")
        edit = " Put your own reasons in place of the new ones." if added else ""
        self._written.append(f"{file.name}: {added} lines added, {deleted} deleted.{edit}")
