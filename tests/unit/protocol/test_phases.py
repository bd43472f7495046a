"""What the two pytests send each other arrives as it was sent."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pytest_ddp.protocol.phases import ItemId, PhaseAnswer, Proceed, RankWarning, RunTest

TESTS = st.builds(ItemId, st.text(), st.text())


@given(st.builds(RunTest, TESTS, st.text()))
def test_run_test_arrives_as_it_was_sent(message):
    assert RunTest.decode(message.encode()) == message


@given(st.builds(Proceed, st.sampled_from(["call", "teardown"]), st.none() | TESTS))
def test_proceed_arrives_as_it_was_sent(message):
    assert Proceed.decode(message.encode()) == message


def test_a_rank_s_answer_travels_with_what_json_does_not_know_as_text():
    warning = RankWarning("text", "builtins:UserWarning", "a.py", 3, "a.py::test_it", ("a.py", 3, "test_it"))
    sent = PhaseAnswer(
        {"user_properties": [("shape", {1})]},
        sections=(("Captured log call", "text"),),
        subtests=({"outcome": "failed"},),
        warnings=(warning, warning._replace(location=None)),
        suite_properties=(("a", "1"),),
        retire="1 thread",
    )
    received = PhaseAnswer.decode(sent.encode())
    assert received == replace(sent, report={"user_properties": [["shape", "{1}"]]})
    assert PhaseAnswer.decode(b"") == PhaseAnswer()


def test_the_answer_of_a_rank_that_passed_is_short():
    plain = PhaseAnswer(passed=0.0)
    assert PhaseAnswer.decode(plain.encode()) == plain
    assert len(plain.encode()) < 40
