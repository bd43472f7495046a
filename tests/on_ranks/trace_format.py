"""The rules of Chrome's trace event format that every viewer relies on."""

# the fields that an event of each kind must have besides name, process and thread
KINDS = {"M": set(), "X": {"dur"}, "i": {"s"}, "s": {"id"}, "t": {"id"}, "f": {"id", "bp"}}


def check_trace_format(events: list[dict]) -> None:
    """Check the rules of the format."""
    for event in events:
        assert {"ph", "name", "pid", "tid", *KINDS[event["ph"]]} <= event.keys()
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event.get("dur", 0) >= 0
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    for row in {(event["pid"], event["tid"]) for event in events}:
        spans = [event for event in events if event["ph"] == "X" and (event["pid"], event["tid"]) == row]
        assert all(nested_or_apart(one, other) for one in spans for other in spans)


def nested_or_apart(one: dict, other: dict) -> bool:
    (start, end), (other_start, other_end) = ((span["ts"], span["ts"] + span["dur"]) for span in (one, other))
    if start > other_start:
        return nested_or_apart(other, one)
    return end <= other_start or other_end <= end or (start == other_start and end <= other_end)
