import itertools
import time
from contextlib import nullcontext

import pytest
from hanging import ended_when, hangs

from pytest_ddp.protocol.phases import PhaseRequest

SHARED = """
import pathlib, threading

@distributed
@pytest.fixture(scope="module")
def shared(ddp):
    yield ddp.group
    pathlib.Path(f"ended{ddp.rank}").touch()

@distributed
def test_first(shared): pass
"""
PASSES = """
@distributed
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_number(number, shared, ddp):
    with open(f"ran{ddp.rank}", "a") as log:
        log.write(f"{number} ")
    print(f"said by {number}")
"""


class Events:
    """A plugin of the controller: what was asked of ranks and what was reported, in order."""

    def __init__(self, monkeypatch) -> None:
        self.seen: list[str] = []
        encode = PhaseRequest.encode

        def remember(request: PhaseRequest) -> bytes:
            self.seen.append(f"ask {request.test.nodeid.partition('::')[2]}")
            return encode(request)

        monkeypatch.setattr(PhaseRequest, "encode", remember)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.seen.append(f"tell {report.nodeid.partition('::')[2]}")

    def early(self) -> list[str]:
        """Return the tests that ranks had begun before the one before them was reported."""
        asked = list(dict.fromkeys(event[4:] for event in self.seen if event.startswith("ask ")))
        told = {event[5:]: place for place, event in enumerate(self.seen) if event.startswith("tell ")}
        pairs = itertools.pairwise(asked)
        return [name for before, name in pairs if self.seen.index(f"ask {name}") < told.get(before, 0)]


@pytest.fixture
def events(monkeypatch) -> Events:
    return Events(monkeypatch)


@pytest.fixture
def run_watched(run_suite, events):
    """Run a suite while its events are noted down, with further plugins in the controller."""

    def run(source: str, *args: str, conftest: str = "", plugins: tuple[object, ...] = ()) -> pytest.RunResult:
        return run_suite(source, *args, conftest=conftest, plugins=[events, *plugins])

    return run


def ran(pytester: pytest.Pytester) -> list[str]:
    return [(pytester.path / f"ran{rank}").read_text() for rank in range(2)]


def test_tests_that_share_a_group_begin_early(run_watched, events, pytester):
    run_watched(SHARED + PASSES).assert_outcomes(passed=5)
    assert events.early() == ["test_number[2]", "test_number[3]", "test_number[4]"]
    assert ran(pytester) == ["1 2 3 4 "] * 2
    assert [(pytester.path / f"ended{rank}").exists() for rank in range(2)] == [True, True]


@pytest.mark.parametrize(
    ("arguments", "conftest"),
    [
        (["-x"], ""),
        (["-s"], ""),
        (["--setup-show"], ""),
        ([], "def pytest_runtest_setup(item): pass"),
        ([], "def pytest_runtest_protocol(item): pass"),
        ([], "def pytest_runtest_teardown(item): pass"),
    ],
    ids=["stops at a failure", "output is shown at once", "fixtures are shown", "setup", "protocol", "teardown"],
)
def test_nothing_begins_early_where_somebody_could_tell(run_watched, events, arguments, conftest):
    run_watched(SHARED + PASSES, *arguments, conftest=conftest).assert_outcomes(passed=5)
    assert events.early() == []


def test_nothing_begins_early_after_a_plugin_that_has_a_say(run_watched, events, pytester):
    """Such as one that skips what depends on a test that has failed."""
    pytester.makepyfile(
        some_plugin="import pytest\ndef pytest_runtest_setup(item):\n    if '[3]' in item.name: pytest.skip('no')"
    )
    pytester.syspathinsert()
    run_watched(SHARED + PASSES, "-p", "some_plugin").assert_outcomes(passed=4, skipped=1)
    assert events.early() == []
    assert ran(pytester) == ["1 2 4 "] * 2


def test_nothing_begins_early_on_a_fresh_group(run_watched, events, pytester):
    run_watched(PASSES.replace("shared, ", "")).assert_outcomes(passed=4)
    assert events.early() == []
    assert ran(pytester) == ["1 2 3 4 "] * 2


@pytest.mark.parametrize("mark", ["skipif('False')", "usefixtures('own')", "timeout(100)"])
def test_nothing_begins_early_where_setup_may_not_go_alike(run_watched, events, mark):
    own = "@pytest.fixture\ndef own(): pass\n"
    run_watched(SHARED + own + PASSES.replace("@distributed", f"@distributed\n@pytest.mark.{mark}")).assert_outcomes(
        passed=5
    )
    assert events.early() == []


def test_each_report_has_the_output_of_its_own_test(run_watched, events):
    result = run_watched(SHARED + PASSES, "-rP")
    assert len(events.early()) == 3
    assert "teardown (rank" not in result.stdout.str()
    for number in range(1, 5):
        result.stdout.fnmatch_lines([f"*_ test_number?{number}? _*", "*call (rank 0)*", f"said by {number}"])
    assert result.stdout.str().count("said by") == 8


FAILS = {
    "raises": ("assert ddp.rank == 0 or number != 2", "rank 1 of 2 *raised AssertionError*"),
    "dies": ("ddp.rank == 1 and number == 2 and os._exit(3)", "rank 1 of 2 *exit code 3*"),
    "skips": ("ddp.rank == 1 and number == 2 and pytest.skip('why')", "*rank*1*skipped*"),
    "hangs": (
        "ddp.rank == 1 and number == 2 and (print('hanging', flush=True), threading.Event().wait())",
        "rank 1 of 2 *still running at its deadline of 1 s*",
    ),
}


@pytest.mark.parametrize(("body", "told"), FAILS.values(), ids=FAILS)
def test_what_goes_wrong_in_a_test_begun_early_is_told_of_it(run_watched, events, body, told):
    suite = PASSES.replace("print(", f"{body}; print(")
    with ended_when(lambda ranks: all(hangs(rank) for rank in ranks)) if "wait" in body else nullcontext():
        result = run_watched(SHARED + suite, "--ddp-timeout=1" if "wait" in body else "--ddp-timeout=60")
    result.assert_outcomes(passed=4, failed=1)
    assert "test_number[2]" in events.early()
    result.stdout.fnmatch_lines(["*_ test_number?2? _*", told])


def test_a_run_that_is_told_to_stop_ends_the_test_that_had_begun(run_watched, events, pytester):
    """Nobody hears of it, but it is finished on its ranks, and their fixtures are."""

    class Stops:
        def pytest_sessionstart(self, session):
            self.session = session

        def pytest_runtest_logreport(self, report):
            if report.nodeid.endswith("[2]") and report.when == "teardown":
                self.session.shouldstop = "enough"

    result = run_watched(SHARED + PASSES, plugins=(Stops(),))
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*Interrupted: enough*"])
    assert events.early() == ["test_number[2]", "test_number[3]"]
    assert ran(pytester) == ["1 2 3 "] * 2
    assert [(pytester.path / f"ended{rank}").exists() for rank in range(2)] == [True, True]


def test_a_test_that_does_not_come_is_not_taken_for_the_one_that_does(run_watched, events, pytester):
    """A plugin may change what is still to run; the ranks of the test that was begun are replaced."""

    class Removes:
        def pytest_sessionstart(self, session):
            self.session = session

        def pytest_runtest_logreport(self, report):
            if report.nodeid.endswith("[1]") and report.when == "teardown":
                self.session.items[:] = [item for item in self.session.items if "[2]" not in item.name]

    run_watched(SHARED + PASSES, plugins=(Removes(),)).assert_outcomes(passed=4)
    assert events.early() == ["test_number[2]"]  # the new ranks make the fixture first, and then there is one test left
    assert ran(pytester) == ["1 2 3 4 "] * 2
    assert [(pytester.path / f"ended{rank}").exists() for rank in range(2)] == [True, True]


def test_an_interrupted_run_does_not_wait_for_a_test_that_hangs(run_watched, events, pytester):
    class Interrupts:
        def pytest_runtest_logreport(self, report):
            if report.nodeid.endswith("[1]") and report.when == "teardown":
                while ran(pytester) != ["1 2 "] * 2:
                    time.sleep(0.01)
                raise KeyboardInterrupt

    suite = PASSES.replace("print(", "number == 2 and threading.Event().wait(); print(")
    with pytest.raises(KeyboardInterrupt):  # as the run in this process hands it on
        run_watched(SHARED + suite, "--ddp-timeout=100", plugins=(Interrupts(),))
    assert events.early() == ["test_number[2]"]
    assert ran(pytester) == ["1 2 "] * 2


def test_durations_are_those_of_the_ranks(run_watched, events):
    class Durations:
        def __init__(self):
            self.reports = []

        def pytest_runtest_logreport(self, report):
            self.reports.append(report)

    durations = Durations()
    run_watched(SHARED + PASSES, plugins=(durations,)).assert_outcomes(passed=5)
    assert len(events.early()) == 3
    assert len(durations.reports) == 15
    assert all(report.duration >= 0 for report in durations.reports)
    assert all(report.duration > 0 for report in durations.reports if report.when == "call")
