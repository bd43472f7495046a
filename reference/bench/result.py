"""The result of a benchmark: one table with units, sentences computed from its numbers, and every raw number.

A benchmark measures raw numbers first. Everything that a reader sees is computed from the raw numbers alone, so a saved
JSON file is enough to make the table, the sentences and the pictures again, and to check that nobody edited them.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

Raw = dict[str, Any]
"""Numbers as JSON can hold them, as they were measured."""

Value = str | int | float | None

_DIGITS = 4
_LARGE = 10**_DIGITS


@dataclass(frozen=True)
class Column:
    """A column of a table: what its numbers are, and their unit; an empty unit for names and counts."""

    name: str
    unit: str = ""

    @property
    def heading(self) -> str:
        """The name, and the unit in parentheses."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True)
class Result:
    """What a benchmark found.

    Attributes:
        name: the benchmark's name on the command line.
        title: one line above the table: what was measured, on how many ranks, by which backend.
        columns: of the table.
        rows: one value for each column, in the column's unit; None if there is no such number.
        sentences: what the numbers say, in two or three sentences that are computed from them.
        raw: every number as it was measured; the rest of this object is computed from it.
        environment: versions, machine, load before and after; see `method.Environment`.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    sentences: Sequence[str]
    raw: Raw
    environment: Mapping[str, Any] = field(default_factory=dict)

    def table(self) -> Table:
        """The table as rich prints it, with the sentences below."""
        table = Table(title=self.title, caption="\n".join(self.sentences), caption_justify="left")
        for index, column in enumerate(self.columns):
            is_text = any(isinstance(row[index], str) for row in self.rows)
            heading = "\n".join([*column.name.split(), *([f"({column.unit})"] if column.unit else [])])
            table.add_column(heading, justify="left" if is_text else "right", vertical="bottom", no_wrap=is_text)
        for row in self.rows:
            table.add_row(*map(text, row))
        return table

    def to_csv(self) -> str:
        """The table with all digits, one line for each row."""
        written = io.StringIO()
        writer = csv.writer(written, lineterminator="\n")
        writer.writerow([column.heading for column in self.columns])
        writer.writerows(self.rows)
        return written.getvalue()

    def to_markdown(self) -> str:
        """The title, the table and the sentences, in Markdown."""
        lines = [
            f"## {self.title}",
            "",
            _markdown_row([column.heading for column in self.columns]),
            _markdown_row(["---"] * len(self.columns)),
            *(_markdown_row([text(value) for value in row]) for row in self.rows),
            "",
            " ".join(self.sentences),
        ]
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        return {
            "name": self.name,
            "title": self.title,
            "columns": [[column.name, column.unit] for column in self.columns],
            "rows": [list(row) for row in self.rows],
            "sentences": list(self.sentences),
            "raw": self.raw,
            "environment": dict(self.environment),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Result":
        """The result that `to_json` wrote."""
        return cls(
            name=data["name"],
            title=data["title"],
            columns=[Column(name, unit) for name, unit in data["columns"]],
            rows=data["rows"],
            sentences=data["sentences"],
            raw=data["raw"],
            environment=data["environment"],
        )

    def write(self, folder: Path) -> list[Path]:
        """Write `NAME.csv` and `NAME.json` into a folder, which is made if it is missing. Returns their paths."""
        table, numbers = folder / f"{self.name}.csv", folder / f"{self.name}.json"
        write_json(numbers, self.to_json())
        table.write_text(self.to_csv(), encoding="utf-8")
        return [table, numbers]


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a value as JSON; make the file's folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def text(value: Value) -> str:
    """A value as a table shows it: four significant digits, without an exponent; a dash if there is none."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    if abs(value) >= _LARGE:
        return f"{value:.0f}"
    rounded = float(f"{value:.{_DIGITS}g}")
    return f"{rounded:.10f}".rstrip("0").rstrip(".") or "0"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
