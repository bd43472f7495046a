"""Pytest's own ways to choose, stop, repeat, show and report tests."""

import re
from xml.etree import ElementTree as ET

import pytest

SUITE = """
import pathlib
import pytest
import sys
import torch
import torch.distributed as dist
from pytest_ddp import distributed

def noted(what):
    with open(pathlib.Path(__file__).with_name("notes"), "a") as notes:
        print(what, file=notes)

@pytest.fixture(scope="module")
def model(ddp_place):
    noted(f"model made on {ddp_place}")
    yield torch.ones(1)
    noted(f"model gone on {ddp_place}")

@pytest.fixture(scope="module")
def ddp_place():
    return dist.get_rank()

@distributed
def test_passes(ddp, model, record_property, record_testsuite_property):
    noted(f"passes on {ddp.rank}")
    record_property("everywhere", 7)
    record_property(f"rank {ddp.rank}", ddp.rank)
    record_testsuite_property("group of", dist.get_world_size())
    print("printed on rank", ddp.rank)
    print("complained on rank", ddp.rank, file=sys.stderr)

@distributed
def test_fails(ddp, model):
    assert ddp.rank == 0

@distributed
def test_raises(ddp):
    raise ValueError("on every rank")

@distributed
def test_skips(ddp):
    pytest.skip("not today")

def test_plain(ddp_ranks):
    assert ddp_ranks(world_size=2).run(dist.get_rank) == [0, 1]
"""


@pytest.fixture
def run(pytester):
    """Write the suite and return what runs pytest on it, with its cache; again and again if need be."""
    pytester.makepyfile(test_suite=SUITE)

    def run(*args: str) -> pytest.RunResult:
        return pytester.runpytest_inprocess(*args)

    return run


@pytest.fixture
def notes(pytester):
    """What the tests noted since last asked, sorted: ranks take their turns as they like."""

    def notes() -> list[str]:
        file = pytester.path / "notes"
        lines = sorted(file.read_text().splitlines()) if file.exists() else []
        file.unlink(missing_ok=True)
        return lines

    return notes


def order_of(result: pytest.RunResult) -> list[str]:
    """Return the names of the tests in the order in which a verbose run reports them."""
    return re.findall(r"::(?:\w+::)?test_(\w+(?:\[\w+\])?) \w+", result.stdout.str())


def test_stopping_at_a_failure_finalises_what_lives_on_ranks(run, notes):
    run("-x").assert_outcomes(passed=1, failed=1)
    assert notes() == [
        "model gone on 0",
        "model gone on 1",
        "model made on 0",
        "model made on 1",
        "passes on 0",
        "passes on 1",
    ]
    result = run("--maxfail=2", "--durations=0", "-vv")
    result.assert_outcomes(passed=1, failed=2)
    for phase in ("setup", "call", "teardown"):
        assert re.search(rf"\ds {phase} +test_suite.py::test_raises", result.stdout.str())


def test_what_a_recorded_property_is_called_must_be_a_text(run_suite):
    result = run_suite("""
        @distributed
        def test_it(ddp, record_testsuite_property):
            record_testsuite_property(7, "seven")
        """)
    result.stdout.fnmatch_lines(["*TypeError: name parameter needs to be a string, but int given"])


@pytest.mark.parametrize(("shown", "expected"), [("stdout", True), ("stderr", True), ("log", False), ("no", False)])
def test_output_of_ranks_is_shown_like_any_other(run_suite, shown, expected):
    result = run_suite(
        """
        @distributed
        def test_it(ddp):
            print("printed on", ddp.rank)
            assert False
        """,
        f"--show-capture={shown}",
    )
    assert ("printed on 1" in result.stdout.lines) is expected


def test_failures_are_remembered_and_selected(run):
    run().assert_outcomes(passed=2, failed=2, skipped=1)
    assert order_of(run("--lf", "-v")) == ["fails", "raises"]
    assert order_of(run("--ff", "-v", "-k", "not raises")) == ["fails", "passes", "skips", "plain"]
    assert order_of(run("--sw", "-v")) == ["passes", "fails"]
    assert order_of(run("--sw-skip", "-v")) == ["fails", "raises"]


def test_what_only_shows_tests_runs_nothing_on_ranks(run, notes):
    planned = run("--setup-plan")
    planned.assert_outcomes()
    planned.stdout.fnmatch_lines(["*SETUP    M model*", "*test_suite.py::test_fails (fixtures used: ddp, *"])
    run("--co", "-q").stdout.fnmatch_lines(["test_suite.py::test_passes", "5 tests collected*"])
    assert notes() == []


def test_setups_are_shown_and_can_be_all_that_runs(run, notes):
    result = run("--setup-show", "-k", "passes or plain")
    result.assert_outcomes(passed=2, deselected=3)
    result.stdout.fnmatch_lines(["*test_suite.py::test_passes (fixtures used: ddp, ddp_place, model, *)*"])
    notes()
    run("--setup-only", "-k", "passes").stdout.fnmatch_lines(["*test_suite.py::test_passes (fixtures used: *"])
    assert notes() == ["model gone on 0", "model gone on 1", "model made on 0", "model made on 1"]


def test_ranks_leave_the_log_file_and_the_cache_to_the_controller(run, run_suite, pytester):
    run("-k", "fails").assert_outcomes(failed=1, deselected=4)
    suite = """
import logging

def test_before(): logging.error("logged before")

@distributed
def test_on_ranks(ddp): logging.error("logged on ranks")

def test_after(): logging.error("logged after")
"""
    run_suite(suite, "--log-file=run.log", "-p", "cacheprovider", "--nf").assert_outcomes(passed=3)
    assert re.findall("logged .*", (pytester.path / "run.log").read_text()) == ["logged before", "logged after"]


def test_junit_xml_has_one_case_a_test_with_what_its_ranks_recorded(run, pytester):
    run("--junitxml=report.xml", "-o", "junit_logging=all").assert_outcomes(passed=2, failed=2, skipped=1)
    suite = ET.parse(pytester.path / "report.xml").getroot()[0]  # noqa: S314  we wrote it
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5",
        "failures": "2",
        "errors": "0",
        "skipped": "1",
    }
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert len(cases) == 5
    recorded = [(prop.get("name"), prop.get("value")) for prop in cases["test_passes"].iter("property")]
    assert sorted(recorded) == [("everywhere", "7"), ("rank 0", "0"), ("rank 1", "1")]
    assert [(prop.get("name"), prop.get("value")) for prop in suite.findall("properties/property")] == [
        ("group of", "2")
    ]
    printed = (cases["test_passes"].find("system-out").text or "").splitlines()
    assert {f"{what} on rank {rank}" for what in ("printed", "complained") for rank in (0, 1)} <= set(printed)
    failure = cases["test_fails"].find("failure")
    assert failure is not None
    assert failure.get("message", "").startswith("rank 1: assert 1 == 0")
    assert (failure.text or "").startswith("rank 1 of 2 (gloo, cpu) raised AssertionError: assert 1 == 0")
    skipped = cases["test_skips"].find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "not today"
