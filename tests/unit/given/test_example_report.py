"""A rank's report of an example survives encoding; notes of several ranks are merged."""

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.given.dispatch import merged_notes
from pytest_ddp.protocol.phases import ExampleReport

REPORTS = st.builds(
    ExampleReport,
    phase=st.binary(),
    rejected=st.none() | st.text(),
    origin=st.text(),
    kind=st.text(),
    notes=st.lists(st.text(), max_size=3),
    events=st.dictionaries(st.text(), st.text() | st.integers() | st.floats(allow_nan=False), max_size=3),
    targets=st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False), max_size=3),
)


@given(report=REPORTS)
def test_a_report_survives_encoding(report):
    assert ExampleReport.decode(report.encode()) == report


def test_no_bytes_are_an_empty_report():
    assert ExampleReport.decode(b"") == ExampleReport()


def test_notes_have_their_rank_unless_all_ranks_made_the_same():
    reports = {0: ExampleReport(notes=["same", "a"]), 1: ExampleReport(notes=["same", "b", "more"])}
    assert list(merged_notes(reports)) == ["same", "rank 0: a", "rank 1: b", "rank 1: more"]
