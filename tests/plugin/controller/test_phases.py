"""Setup, call and teardown of a test on its ranks: reported one by one, and no rank runs ahead of the others."""

import json

import pytest

PHASES = """
    import json, pathlib
    reports = []

    def pytest_runtest_logreport(report):
        reports.append([report.nodeid, report.when, report.outcome, report.duration])

    def pytest_sessionfinish(session):
        if not hasattr(session.config, "workerinput"):
            pathlib.Path("reports.json").write_text(json.dumps(reports))
    """
SHARED = """
import pathlib

@distributed
@pytest.fixture(scope="module")
def shared(ddp):
    yield ddp.group
    pathlib.Path(f"ended{ddp.rank}").touch()

@distributed
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_number(number, shared, ddp):
    with open(f"ran{ddp.rank}", "a") as log:
        log.write(f"{number} ")
    print(f"said by {number}")
"""


def ran(pytester: pytest.Pytester) -> list[str]:
    return [(pytester.path / f"ran{rank}").read_text() for rank in range(2)]


def test_every_phase_has_its_own_report(run_suite, pytester):
    result = run_suite(
        """
        @distributed
        def test_passes(tmp_path): pass

        @distributed
        def test_fails(ddp):
            assert ddp.rank == 0

        @distributed
        def test_skips(): pytest.skip("no reason")

        @distributed
        def test_dies(ddp):
            if ddp.rank == 1:
                os._exit(3)

        @distributed
        def test_next(): pass
        """,
        conftest=PHASES,
    )
    result.assert_outcomes(passed=2, failed=2, skipped=1)
    reports = json.loads((pytester.path / "reports.json").read_text())
    outcomes = {(test.partition("::")[2], when): outcome for test, when, outcome, _ in reports}
    assert {when for _, when in outcomes} == {"setup", "call", "teardown"}
    assert all(outcome == "passed" for (_, when), outcome in outcomes.items() if when != "call")
    assert all(seconds > 0 for _, when, _, seconds in reports if when == "call")


def test_no_rank_enters_the_call_before_every_rank_is_set_up(run_suite):
    """Rank 0 would wait in the barrier for ever, if it did not wait at the gate."""
    result = run_suite("""
        @pytest.fixture
        def broken(ddp):
            if ddp.rank == 1:
                raise OSError("no disk")

        @distributed
        def test_it(broken):
            torch.distributed.barrier()

        @distributed
        def test_next(): pass
        """)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at setup of test_it*", "rank 1 of 2 *raised OSError: no disk*"])
    result.stdout.no_fnmatch_line("*wait* in barrier*")


def test_no_rank_tears_down_before_every_rank_has_finished_the_call(run_suite):
    result = run_suite("""
        @pytest.fixture
        def file(ddp):
            path = ddp.shared_path.parent / "file"
            path.touch()
            yield path
            path.unlink(missing_ok=True)

        @distributed
        def test_it(ddp, file):
            if ddp.rank == 1:
                assert all(file.exists() for _ in range(20_000))
        """)
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("hook", ["pytest_runtest_setup", "pytest_runtest_call"])
def test_a_test_that_a_plugin_skips_in_a_phase_does_not_run_that_phase(run_suite, pytester, hook):
    pytester.makepyfile(some_plugin=f"import pytest\ndef {hook}(item):\n    if '[3]' in item.name: pytest.skip('no')")
    pytester.syspathinsert()
    run_suite(SHARED, "-p", "some_plugin").assert_outcomes(passed=3, skipped=1)
    assert ran(pytester) == ["1 2 4 "] * 2


def test_a_test_that_pytest_does_not_come_to_never_runs(run_suite, pytester):
    class Stops:
        def pytest_sessionstart(self, session):
            self.session = session

        def pytest_runtest_logreport(self, report):
            if report.nodeid.endswith("[2]") and report.when == "teardown":
                self.session.shouldstop = "enough"

    result = run_suite(SHARED, plugins=[Stops()])
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*Interrupted: enough*"])
    assert ran(pytester) == ["1 2 "] * 2
    assert [(pytester.path / f"ended{rank}").exists() for rank in range(2)] == [True, True]


def test_a_test_that_is_removed_from_the_run_is_passed_over(run_suite, pytester):
    class Removes:
        def pytest_sessionstart(self, session):
            self.session = session

        def pytest_runtest_logreport(self, report):
            if report.nodeid.endswith("[1]") and report.when == "teardown":
                self.session.items[:] = [item for item in self.session.items if "[3]" not in item.name]

    run_suite(SHARED, plugins=[Removes()]).assert_outcomes(passed=3)
    assert ran(pytester) == ["1 2 4 "] * 2
    assert [(pytester.path / f"ended{rank}").exists() for rank in range(2)] == [True, True]


def test_each_report_has_the_output_of_its_own_test(run_suite):
    result = run_suite(SHARED, "-rP")
    for number in range(1, 5):
        result.stdout.fnmatch_lines([f"*_ test_number?{number}? _*", "*call (rank 0)*", f"said by {number}"])
    assert result.stdout.str().count("said by") == 8


def test_fixtures_end_on_all_ranks_after_a_failure_on_one(run_suite):
    """After a failure nothing is kept: the fixture of the rank that passed must end with that of the other."""
    result = run_suite("""
        import pathlib

        @distributed
        @pytest.fixture(scope="module")
        def shared(ddp):
            made = torch.tensor(ddp.rank)
            dist.all_reduce(made)
            yield made.item()
            dist.all_reduce(made)
            pathlib.Path(f"ended{dist.get_rank()}").write_text(str(made.item()))

        @distributed
        def test_first(shared): pass

        @distributed
        def test_fails(shared, ddp):
            assert ddp.rank == 0

        @distributed
        def test_makes_it_anew(shared):
            assert [pathlib.Path(f"ended{rank}").read_text() for rank in range(2)] == ["2", "2"]
        """)
    result.assert_outcomes(passed=2, failed=1)


def test_a_test_that_ranks_do_not_find_has_no_teardown_of_the_one_before(run_suite):
    result = run_suite("""
        import warnings
        NUMBERS = [1, 2] if "RANK" in os.environ else [1, 2, 3]

        @distributed
        @pytest.mark.parametrize("number", NUMBERS)
        def test_it(number):
            if number == 2:
                warnings.warn("given once")
        """)
    result.assert_outcomes(passed=2, failed=0, errors=1, warnings=1)


def test_a_rank_that_dies_in_teardown_is_reported_there(run_suite):
    result = run_suite("""
        from pytest_ddp.rank_session.leaks import Snapshot

        @distributed
        def test_dies(ddp):
            if ddp.rank == 1:
                Snapshot.restore = lambda *_: os._exit(3)

        @distributed
        def test_next(): pass
        """)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_dies*", "rank 1 of 2 *exited with code 3*"])
