"""Exported traces are valid in Chrome's trace event format, and show each operation at its time."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stories import Story
from trace_format import check_trace_format

from pytest_ddp.errors import UsageError
from pytest_ddp.observed.inspection.chrome_trace import Trace, merge_traces, write_trace

STEP = (
    "launch s, wait s, end s, backward, gradient, launch a, gradient, launch b, returned, "
    "wait b, end b, wait a, end a, launch f"
)


def exported(path, steps: str = STEP, rank: int = 0, **keywords) -> list[dict]:
    story = Story(steps, **keywords)
    write_trace(path, Trace(rank, list(story.entries.values()), story.events, story.nanoseconds).trace_events())
    return json.loads(path.read_text())["traceEvents"]


def find(events: list[dict], name: str) -> dict:
    (found,) = (event for event in events if event["name"] == name)
    return found


def test_the_trace_of_a_training_step_is_valid(tmp_path):
    check_trace_format(exported(tmp_path / "trace.json"))


def test_a_rank_is_a_process_with_tracks_for_autograd_and_groups(tmp_path):
    events = exported(tmp_path / "trace.json", rank=3, details={"s": {"group": "1", "ranks": (0, 3)}})
    named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert find(events, "process_name")["args"] == {"name": "rank 3"}
    assert {event["pid"] for event in events} == {3}
    assert sorted(named.values()) == ["autograd"] + 2 * ["group 0 (ranks 0-1)"] + ["group 1 (ranks 0,3)"]
    assert named[find(events, "all_reduce #1")["tid"]] == "group 1 (ranks 0,3)"
    assert named[find(events, "backward 1")["tid"]] == "autograd"


def test_an_operation_lasts_from_launch_to_completion(tmp_path):
    found = find(exported(tmp_path / "trace.json"), "all_reduce #2")
    assert (found["ph"], found["ts"], found["dur"]) == ("X", 6, 7)
    assert found["args"] == {
        "tensors": "float32[4]",
        "bytes": 16,
        "asynchronous": True,
        "gradients ready": "1/2",
        "line": "train.py:2",
        "match": "0 #2",
    }


def test_a_wait_is_inside_its_operation(tmp_path):
    events = exported(tmp_path / "trace.json")
    waits = [(event["ts"], event["dur"], event["tid"]) for event in events if event["name"] == "wait"]
    rows = [find(events, f"all_reduce #{number}")["tid"] for number in (1, 3, 2)]
    assert waits == [(2, 1, rows[0]), (10, 1, rows[1]), (12, 1, rows[2])]


def test_a_span_without_an_end_lasts_to_the_end_of_the_record(tmp_path):
    events = exported(tmp_path / "trace.json", "backward, gradient, launch a, wait a, gradient")
    for name, lasted in (("backward 1", 4), ("all_reduce #1", 2), ("wait", 1)):
        found = find(events, name)
        assert (found["dur"], found["args"]["ended"]) == (lasted, False)


def test_gradients_are_instants(tmp_path):
    events = exported(tmp_path / "trace.json", "backward, gradient weight, gradient bias, returned")
    assert [(event["name"], event["ts"]) for event in events if event["ph"] == "i"] == [("weight", 2), ("bias", 3)]


def test_the_trace_of_an_empty_record_is_valid(tmp_path):
    write_trace(tmp_path / "trace.json", Trace(0, [], [], []).trace_events())
    check_trace_format(json.loads((tmp_path / "trace.json").read_text())["traceEvents"])


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20), st.integers(0, 9)), max_size=20))
def test_spans_on_one_track_belong_to_one_group_and_never_overlap(spans):
    trace, placed = Trace(0, [], [], []), {}
    for group, start, length in sorted(spans, key=lambda span: span[1]):
        track = trace._track(group, start, start + length)
        placed.setdefault(track, []).append((group, start, start + length))
    for found in placed.values():
        assert len({group for group, _, _ in found}) == 1
        assert all(end <= start for (_, _, end), (_, start, _) in pairwise(found))


def merged(tmp_path, *ranks: str, **keywords) -> list[dict]:
    paths = [tmp_path / f"{rank}.json" for rank in range(len(ranks))]
    for rank, steps in enumerate(ranks):
        exported(paths[rank], steps, rank, **keywords)
    merge_traces(paths, tmp_path / "all.json")
    return json.loads((tmp_path / "all.json").read_text())["traceEvents"]


def test_traces_are_merged(tmp_path):
    events = merged(tmp_path, STEP, f"backward, gradient, gradient, returned, {STEP}")
    check_trace_format(events)
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {"rank 0", "rank 1"}


def test_arrows_lead_from_the_first_rank_to_the_last(tmp_path):
    late, later = "backward, launch a, end a", "backward, gradient, launch a, end a"
    events = merged(tmp_path, later, "launch a, end a", late)
    arrows = [(event["ph"], event["pid"], event["ts"]) for event in events if event["name"] == "0 #1"]
    assert arrows == [("s", 1, 1), ("t", 2, 2), ("f", 0, 3)]


def test_an_arrow_leads_from_a_send_to_its_receive(tmp_path):
    message = {"a": {"op": "send", "peer": 1}, "b": {"op": "recv", "peer": 0}, "c": {"ranks": (0, 1)}}
    exported(tmp_path / "0.json", "launch a", 0, details=message)
    exported(tmp_path / "1.json", "launch b", 1, details=message)
    merge_traces([tmp_path / "0.json", tmp_path / "1.json"], tmp_path / "all.json")
    events = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    assert [event["ph"] for event in events if event["name"] == "0 0 to 1 with tag 0 #1"] == ["s", "f"]


def test_an_operation_of_one_rank_has_no_arrow(tmp_path):
    assert not [event for event in merged(tmp_path, "launch a, end a", "backward") if event["ph"] in "stf"]


def test_no_traces_cannot_be_merged(tmp_path):
    with pytest.raises(UsageError, match=r"there are no traces to merge; each rank writes one with .*export_trace"):
        merge_traces([], tmp_path / "all.json")


@pytest.mark.parametrize("text", ["no JSON", "[]", "{}"])
def test_a_file_that_is_no_trace_cannot_be_merged(tmp_path, text):
    (tmp_path / "0.json").write_text(text)
    with pytest.raises(UsageError, match=r"0\.json was not written by ddp\.collectives\.export_trace\(path\) \("):
        merge_traces([tmp_path / "0.json"], tmp_path / "all.json")
