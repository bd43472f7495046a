"""The comparison of simulated with real ranks on planted bugs: its rows, and the table that sums them up."""

from dataclasses import replace

import pytest
from bug import Bug
from simulated import PAGE, PLANTED, SUMMARY, Row, compare, read, summary

ROWS = [
    Row("a", "s", "naive_ddp", "trains[float32]", "failed", "failed", 3, 40, 90),
    Row("b", "s", "naive_ddp", "sent_once", "failed", "real ranks alone"),
    Row("c", "s", "naive_ddp", "trains[one_rank]", "failed", "passed"),
    Row("d", "s", "naive_ddp", "any_schedule", "not run", "failed"),
    Row("e", "s", "naive_ddp", "trains[float64]", "passed", "passed", 9, 20, 70),
]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_read_as_it_was_written(row):
    assert read(f"# Title\n\nText, | and | more.\n\n| key | state |\n| --- | --- |\n{row}\n") == {row.key: row}


def test_rows_are_counted_by_component():
    bugs = [Bug("naive_ddp", "", "", row.check) for row in ROWS]
    rows = [replace(row, key=bug.key) for row, bug in zip(ROWS, bugs, strict=True)]
    right = Row("right", "s", "naive_ddp", "trains[everything_together]", "passed", "passed", 9, 30, 80)
    lines = summary([*rows, right], [*bugs, Bug("naive_ddp", "", "", "not run yet")]).splitlines()
    assert lines[2:] == [
        "| `naive_ddp` | 6 | 5 | 1 | 1 | 1 | 1 | 1 | 30 ms | 80 ms |",
        "| all | 6 | 5 | 1 | 1 | 1 | 1 | 1 | 30 ms | 80 ms |",
    ]


def test_the_table_sums_up_the_page():
    rows = read(PAGE.read_text(encoding="utf-8")).values()
    assert summary(rows, PLANTED) in SUMMARY.read_text(encoding="utf-8")


def test_a_bug_is_held_to_its_check_on_both_kinds_of_ranks():
    sums = Bug("naive_ddp", "/ dist.get_world_size()\n", "\n", "gradients_averaged")
    averages = sums._replace(new=" / dist.get_world_size()\n")
    found = compare([sums, averages, sums._replace(check="results_are_waited_for")])
    assert [(row.real, row.simulated) for row in found] == [
        ("failed", "failed"),
        ("passed", "passed"),
        ("passed", "real ranks alone"),
    ]
    assert (found[0].scenarios, found[1].scenarios) == (0, 9)
    assert min(found[1].real_ms, found[1].simulated_ms) > 0
