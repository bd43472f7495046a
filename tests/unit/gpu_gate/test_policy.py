"""The quarantine and the expected skips: what an entry covers, and when it fails the gate itself."""

import datetime as dt
from pathlib import Path

import pytest

from pytest_ddp.errors import UsageError
from pytest_ddp.gpu_gate.junit import Case
from pytest_ddp.gpu_gate.policy import Policy, covers

TODAY = dt.date(2026, 11, 28)
TEXT = """
[[flaky]]
test = "tests/gpu/test_abort.py::test_hang"
owner = "ana"
reason = "#12"
expires = 2026-12-31

[[skip]]
test = "tests/gpu/test_nccl.py"
reason = "need 2 GPUs"
below_gpus = 2
"""


@pytest.fixture
def read(tmp_path):
    def read(text: str, gpus: int = 1) -> Policy:
        path = tmp_path / "quarantine.toml"
        path.write_text(text)
        return Policy.read(path, gpus)

    return read


@pytest.mark.parametrize(
    ("entry", "test", "covered"),
    [
        ("a.py::test_x", "a.py::test_x", True),
        ("a.py::test_x", "a.py::test_x[1]", True),
        ("a.py::test_x", "a.py::test_xy", False),
        ("a.py::test_x[1]", "a.py::test_x[2]", False),
        ("a.py", "a.py::TestX::test_y", True),
        ("a.py::TestX", "a.py::TestX::test_y", True),
        ("a", "a.py::test_x", False),
    ],
)
def test_an_entry_covers_a_test_its_parameters_and_what_is_in_it(entry, test, covered):
    assert covers(entry, test) is covered


def test_failures_and_skips_are_forgiven_by_their_entries(read):
    policy = read(TEXT)
    assert policy.quarantine(Case("tests/gpu/test_abort.py::test_hang[nccl]", "failed")).owner == "ana"
    assert policy.quarantine(Case("tests/gpu/test_abort.py::test_other", "failed")) is None
    assert policy.expects_skip(Case("tests/gpu/test_nccl.py::test_a", "skipped", "2 ranks on cuda need 2 GPUs; ..."))
    assert not policy.expects_skip(Case("tests/gpu/test_nccl.py::test_a", "skipped", "no nccl"))


def test_a_machine_with_enough_gpus_skips_nothing(read):
    assert read(TEXT, gpus=2).skips == ()
    assert Policy.read(None, 1) == Policy()


def test_entries_that_expired_or_fit_nothing_are_complaints(read):
    flaky, skip = Case("tests/gpu/test_abort.py::test_hang", "passed"), Case("tests/gpu/test_nccl.py::test_a", "passed")
    assert list(read(TEXT).complaints([flaky, skip], TODAY)) == []
    assert list(read(TEXT).complaints([flaky, skip], dt.date(2026, 12, 31))) == []
    assert list(read(TEXT).complaints([flaky, skip], dt.date(2027, 1, 1))) == [
        "[[flaky]] tests/gpu/test_abort.py::test_hang expired on 2026-12-31: ana repairs or removes the test (#12)"
    ]
    assert list(read(TEXT).complaints([flaky], TODAY)) == [
        "[[skip]] tests/gpu/test_nccl.py fits no test of this run: remove the entry, or correct its id"
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[flaky]]\ntest = 'a'", r"\[\[flaky\]\] has the keys test, owner, reason, expires; got test$"),
        (TEXT.replace("2026-12-31", "'soon'"), r"\[\[flaky\]\] expires is a date; got 'soon'"),
        (TEXT.replace('"ana"', '""'), r"\[\[flaky\]\] owner is a str; got ''"),
        ("[[flakey]]\n", r"the tables are \[\[flaky\]\] and \[\[skip\]\]; got flakey"),
        ("[[", "Invalid|Expected"),
    ],
)
def test_an_entry_without_owner_or_expiry_is_refused(read, text, words):
    with pytest.raises(UsageError, match=words):
        read(text)


def test_a_file_that_is_missing_is_refused(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        Policy.read(tmp_path / "none.toml", 1)


def test_this_projects_file_is_valid():
    """Every entry is valid, and none has expired on the day of this test."""
    policy = Policy.read(Path(__file__).parents[3] / "ci" / "quarantine.toml", 1)
    assert all(entry.below_gpus > 1 for entry in policy.skips)
