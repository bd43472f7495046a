"""The rows of a timeline, and its cuts."""

import pytest
from stories import Story

from pytest_ddp.observed.timeline import Timeline, recorded_timeline, table
from pytest_ddp.operations.fingerprint import ANY_RANK, Fingerprint

TWO_BUCKETS = (
    "launch s, wait s, end s, backward, gradient b.bias, launch a, gradient b.weight, gradient a.bias, "
    "gradient a.weight, launch b, returned, wait a, wait b, end a, end b"
)


def lines_of(steps: str, **keywords) -> list[str]:
    story = Story(steps, **keywords)
    return str(Timeline(list(story.entries.values()), story.events)).splitlines()


def test_a_training_step():
    details = {"s": {"op": "broadcast", "dtype": "int64", "shapes": ((2,),)}}
    assert lines_of(TWO_BUCKETS, gradients=4, details=details) == [
        "clock  event                what                        group    tensors     bytes  gradients  line",
        "  1-3  launched, waited     broadcast #1                0 (0-1)  int64[2]       16             train.py:1",
        "    4  backward 1 began                                                                   0/4  train.py:9",
        "    5  gradient ready       b.bias                                                        1/4",
        "    6  launched             all_reduce #2               0 (0-1)  float32[4]     16        1/4  train.py:2",
        "  7-9  gradients ready      b.weight, a.bias, a.weight                                    4/4",
        "   10  launched             all_reduce #3               0 (0-1)  float32[4]     16        4/4  train.py:3",
        "   11  backward 1 returned",
        "   12  waits                all_reduce #2               0 (0-1)",
        "   13  waits                all_reduce #3               0 (0-1)",
        "   14  completed            all_reduce #2               0 (0-1)",
        "   15  completed            all_reduce #3               0 (0-1)",
    ]


@pytest.mark.parametrize(
    ("steps", "events"),
    [
        ("launch a", ["launched"]),
        ("launch a, wait a", ["launched, waits"]),
        ("launch a, end a", ["launched, completed"]),
        ("launch a, end a, wait a", ["launched, waited"]),
        ("launch a, end a, launch b, wait a", ["launched, completed", "launched", "waited"]),
        ("launch a, launch b, wait a, end a", ["launched", "launched", "waited"]),
    ],
)
def test_a_wait_that_ended_differs_from_one_that_did_not(steps, events):
    head, *lines = lines_of(steps)
    assert [line[head.index("event") : head.index("what")].strip() for line in lines] == events


def test_a_row_names_few_gradients():
    steps = ", ".join(["backward", *(f"gradient p{number}" for number in range(9)), "returned"])
    assert "p0, ... p8" in lines_of(steps, gradients=9)[2]


def test_cleared_operations_are_left_out():
    story = Story("launch a, launch b, wait a, end a")
    assert str(Timeline([story.entries["b"]], story.events)).count("all_reduce") == 1


def test_sends_and_receives_show_the_peer():
    details = {"a": {"op": "send", "peer": 1}, "b": {"op": "recv", "peer": 1}, "c": {"op": "recv"}}
    lines = lines_of("launch a, launch b, launch c", details=details)
    assert "send #1 to rank 1 " in lines[1]
    assert "recv #2 from rank 1 " in lines[2]
    assert "recv #3 from any rank " in lines[3]


def test_a_short_timeline_is_cut_in_the_middle():
    story = Story(", ".join(f"launch {number}" for number in range(100)))
    lines = Timeline(list(story.entries.values()), story.events).short(30).splitlines()
    assert len(lines) == 32
    assert "all_reduce #10 " in lines[10]
    assert lines[11] == "... 70 rows left out ..."
    assert "all_reduce #81 " in lines[12]
    assert "all_reduce #100 " in lines[-1]


def test_a_short_timeline_of_few_rows_is_not_cut():
    story = Story(TWO_BUCKETS)
    timeline = Timeline(list(story.entries.values()), story.events)
    assert timeline.short() == str(timeline)


def test_empty_timelines():
    assert lines_of("launch a")[0].startswith("clock")
    assert str(Timeline([], [])) == ""
    assert recorded_timeline([], None) == ""


def notice(op: str, number: int, **keywords) -> Fingerprint:
    return Fingerprint(
        op, "0", (0, 1), number, 1, dtype="float32", shapes="[4]", source=f"train.py:{number}", **keywords
    )


def test_the_timeline_of_recorded_operations():
    notices = [notice("all_reduce", 1), notice("recv", 1, peer=ANY_RANK), notice("all_reduce", 2)]
    assert recorded_timeline(notices, notices[2]).splitlines() == [
        "event    what                   group    tensors     line",
        "entered  all_reduce #1          0 (0-1)  float32[4]  train.py:1",
        "entered  recv #1 from any rank  0 (0-1)  float32[4]  train.py:1",
        "waits    all_reduce #2          0 (0-1)  float32[4]  train.py:2",
    ]


def test_columns_without_content_are_left_out_and_long_cells_are_cut():
    assert table(("a", "b", "c"), [("x", "", "12"), ("y" * 70, "", "3")], right=("c",)) == [
        f"a{' ' * 59}   c",
        f"x{' ' * 59}  12",
        f"{'y' * 57}...   3",
    ]


def test_of_a_long_path_the_file_and_the_line_are_shown():
    _, row = table(("line",), [("/a/very/long/path" * 5 + "/test_train.py:31",)])
    assert row.startswith("...")
    assert row.endswith("/test_train.py:31")
    assert len(row) == 60
