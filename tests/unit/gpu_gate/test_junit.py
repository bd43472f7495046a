"""Reports are read as pytest writes them; a hostile one is refused."""

import os

import pytest

from pytest_ddp.gpu_gate.junit import Case, ReportError, parse, read_bytes

SUITE = """
import pytest

class TestInside:
    @pytest.mark.parametrize("text", ["a.b"])
    def test_passes(self, text): pass

def test_fails(): assert 1 == 2

def test_skips(): pytest.skip("needs 2 GPUs")

@pytest.mark.xfail(reason="#1")
def test_xfails(): assert False

@pytest.fixture
def broken():
    yield
    assert False

def test_teardown(broken): pass

def test_both(broken): assert False
"""

ABSENT = "import pytest; pytest.skip('no CUDA today', allow_module_level=True)"


def test_a_report_of_pytest_is_read_with_ids_and_places(pytester):
    pytester.makepyfile(
        **{"sub/test_suite": SUITE, "sub/test_broken": "import no_such_module", "sub/test_absent": ABSENT}
    )
    pytester.runpytest("--junitxml=out.xml", "-o", "junit_family=xunit1", "--continue-on-collection-errors")
    cases = {case.test: case for case in parse((pytester.path / "out.xml").read_bytes())}
    assert {test: case.status for test, case in cases.items()} == {
        "sub/test_absent.py": "skipped",
        "sub/test_broken.py": "error",
        "sub/test_suite.py::TestInside::test_passes[a.b]": "passed",
        "sub/test_suite.py::test_fails": "failed",
        "sub/test_suite.py::test_skips": "skipped",
        "sub/test_suite.py::test_xfails": "xfailed",
        "sub/test_suite.py::test_teardown": "error",
        "sub/test_suite.py::test_both": "failed",
    }
    assert "no CUDA today" in cases["sub/test_absent.py"].message
    failed, skipped = cases["sub/test_suite.py::test_fails"], cases["sub/test_suite.py::test_skips"]
    assert (failed.file, failed.line, failed.message) == ("sub/test_suite.py", 7, "assert 1 == 2")
    assert skipped.message == "needs 2 GPUs"
    assert [case.status for case in cases.values() if not case.executed] == ["skipped", "error", "skipped", "error"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no XML"),
        (b"<testsuites>", "no XML"),
        (b"\xff\xfe<\x00", "no XML"),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><x>&a;</x>', "has a document type"),
    ],
)
def test_what_pytest_does_not_write_is_refused(data, words):
    with pytest.raises(ReportError, match=words):
        parse(data)


def test_a_link_in_place_of_the_report_is_not_followed(tmp_path):
    secret, report = tmp_path / "secret", tmp_path / "junit.xml"
    secret.write_text("token")
    report.symlink_to(secret)
    with pytest.raises(ReportError, match="the run left no report: Too many levels of symbolic links"):
        read_bytes(report)
    report.unlink()
    os.mkfifo(report)
    with pytest.raises(ReportError, match="something else than a report"):
        read_bytes(report)


def test_an_empty_report_has_no_case():
    assert parse(b"<testsuites/>") == []
    assert parse(b'<x><testcase classname="a.b" name="c" line="soon"/></x>') == [Case("a.b.c", "passed")]
