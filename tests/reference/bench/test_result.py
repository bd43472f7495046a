"""A result is a table with units, sentences and raw numbers, and its JSON holds all of it."""

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from reference.bench.result import Column, Result, text

RESULT = Result(
    name="sample",
    title="A sample",
    columns=[Column("variant"), Column("time", "ms"), Column("count")],
    rows=[["naive", 12.345678, 3], ["flat", None, 4]],
    sentences=["Naive takes 12 ms."],
    raw={"seconds": [0.012]},
    environment={"cores": 2},
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (12.345678, "12.35"),
        (0.00012344, "0.0001234"),
        (123456.7, "123457"),
        (0.0, "0"),
        (1000.0, "1000"),
        (3, "3"),
        (None, "-"),
        ("flat", "flat"),
    ],
)
def test_a_float_is_shown_with_four_digits(value: str | float | None, shown: str) -> None:
    assert text(value) == shown


def test_json_holds_the_whole_result() -> None:
    assert Result.from_json(json.loads(json.dumps(RESULT.to_json()))) == RESULT


def test_csv_holds_all_digits_and_units() -> None:
    rows = list(csv.reader(io.StringIO(RESULT.to_csv())))
    assert rows == [["variant", "time (ms)", "count"], ["naive", "12.345678", "3"], ["flat", "", "4"]]


def test_the_printed_table_shows_rows_and_sentences() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(RESULT.table())
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert "12.35" in printed
    assert "Naive takes 12 ms." in printed


def test_markdown_shows_rows_and_sentences() -> None:
    assert RESULT.to_markdown().splitlines() == [
        "## A sample",
        "",
        "| variant | time (ms) | count |",
        "| --- | --- | --- |",
        "| naive | 12.35 | 3 |",
        "| flat | - | 4 |",
        "",
        "Naive takes 12 ms.",
    ]


def test_files_are_named_after_the_benchmark(tmp_path: Path) -> None:
    paths = RESULT.write(tmp_path / "out")
    assert [path.name for path in paths] == ["sample.csv", "sample.json"]
    assert Result.from_json(json.loads(paths[1].read_text(encoding="utf-8"))) == RESULT
