"""Setup and call as one run of the ranks: seen from outside, nothing but faster."""

import json

import pytest

from pytest_ddp.protocol.phases import PhaseRequest

PHASES = """
    import json, pathlib
    reports = []

    def pytest_runtest_logreport(report):
        reports.append([report.nodeid, report.when, report.outcome, report.duration])

    def pytest_sessionfinish(session):
        if not hasattr(session.config, "workerinput"):
            pathlib.Path("reports.json").write_text(json.dumps(reports))
    """


def test_it_is_taken_where_setup_is_sure_to_pass(run_suite, monkeypatch):
    asked = _asked(monkeypatch)
    suite = """
        @distributed
        @pytest.fixture(scope="module")
        def shared(ddp): return ddp.group

        @pytest.fixture
        def own(): pass

        @distributed
        @pytest.mark.parametrize("number", [1, 2])
        def test_number(number, shared, tmp_path, monkeypatch): pass

        @distributed
        def test_own(own, shared): pass

        @distributed
        @pytest.mark.skipif("False")
        def test_marked(shared): pass

        @distributed
        def test_plain(shared): pass
        """
    run_suite(suite).assert_outcomes(passed=5)
    assert asked == [
        ("test_number[1]", ["setup", "call", "teardown"]),
        ("test_number[2]", ["setup+call", "teardown"]),
        ("test_own", ["setup", "call", "teardown"]),
        ("test_marked", ["setup", "call", "teardown"]),
        ("test_plain", ["setup+call", "teardown"]),
    ]


def test_teardown_joins_where_no_code_of_the_project_runs_in_it(run_suite, monkeypatch):
    asked = _asked(monkeypatch)
    suite = """
        @distributed
        @pytest.fixture(scope="module")
        def shared(ddp): return ddp.group

        @distributed
        def test_first(shared): pass

        @distributed
        @pytest.mark.parametrize("number", [1, 2])
        def test_number(number, shared, ddp): print("this is captured")

        @distributed
        def test_monkeypatch(shared, monkeypatch): pass

        @distributed
        def test_request(shared, request): pass

        @distributed
        def test_before_a_class(shared): pass

        @distributed
        class TestClass:
            def test_in_class(self, shared): pass
            def test_last(self, shared): pass

        @distributed(observe=True)
        def test_observed(): pass

        @distributed(observe=True)
        def test_end(): pass
        """
    run_suite(suite).assert_outcomes(passed=10)
    assert asked == [
        ("test_first", ["setup", "call", "teardown"]),
        ("test_number[1]", ["setup+call+teardown"]),
        ("test_number[2]", ["setup+call+teardown"]),
        ("test_monkeypatch", ["setup+call", "teardown"]),
        ("test_request", ["setup+call", "teardown"]),
        ("test_before_a_class", ["setup+call", "teardown"]),
        ("TestClass::test_in_class", ["setup+call+teardown"]),
        ("TestClass::test_last", ["setup+call", "teardown"]),
        ("test_observed", ["setup+call", "teardown"]),
        ("test_end", ["setup+call", "teardown"]),
    ]


def test_ranks_that_leave_something_behind_wait_for_the_others(run_suite, monkeypatch):
    """What a rank takes back, such as a process that it has started, others may still need."""
    asked = _asked(monkeypatch)
    result = run_suite(
        """
        @distributed
        @pytest.mark.parametrize("number", [1, 2])
        def test_it(number, ddp):
            if number == 1 and ddp.rank == 1:
                os.environ["LEFT"] = "behind"
        """,
        "--ddp-leaks=error",
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*test_it?1? left behind: environment changed: LEFT*"])
    assert asked == [("test_it[1]", ["setup+call+teardown", "teardown"]), ("test_it[2]", ["setup+call", "teardown"])]


def test_fixtures_end_on_all_ranks_where_only_some_had_torn_down(run_suite, monkeypatch):
    """After a failure nothing is kept: the fixture of the rank that passed must end with that of the other."""
    asked = _asked(monkeypatch)
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
    assert asked[1:] == [
        ("test_fails", ["setup+call+teardown", "teardown"]),
        ("test_makes_it_anew", ["setup", "call", "teardown"]),
    ]


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


def test_a_rank_that_dies_in_such_a_teardown_is_told_there(run_suite):
    result = run_suite("""
        from pytest_ddp.rank_session.leaks import Snapshot

        @distributed
        def test_dies(ddp):
            if ddp.rank == 1:
                Snapshot.put_back = lambda snapshot: os._exit(3)

        @distributed
        def test_next(): pass
        """)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_dies*", "rank 1 of 2 *exit code 3*"])


@pytest.mark.parametrize("hook", ["pytest_runtest_setup", "pytest_runtest_call"])
def test_hooks_of_the_project_find_the_phases_apart(run_suite, monkeypatch, hook):
    asked = _asked(monkeypatch)
    run_suite("@distributed\ndef test_it(): pass", conftest=f"def {hook}(item): pass").assert_outcomes(passed=1)
    assert asked == [("test_it", ["setup", "call", "teardown"])]


def test_reports_are_those_of_three_phases(run_suite, pytester):
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
    assert all(seconds >= 0 for *_, seconds in reports)


def test_a_setup_that_fails_on_one_rank_after_all_is_an_error_at_setup(run_suite):
    result = run_suite("""
        import pathlib

        @distributed
        def test_breaks_what_setup_needs(ddp, tmp_path_factory):
            if ddp.rank == 1:
                tmp_path_factory._basetemp = pathlib.Path(os.devnull)

        @distributed
        def test_it(tmp_path):
            torch.distributed.barrier()

        @distributed
        def test_next(): pass
        """)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(
        ["*ERROR at setup of test_it*", "rank 1 of 2 *raised NotADirectoryError*", "*rank 0 waited in barrier #1*"]
    )


def _asked(monkeypatch) -> list[tuple[str, list[str]]]:
    """Return what will be asked of ranks from now on: the phases of each test."""
    asked: list[tuple[str, list[str]]] = []
    encode = PhaseRequest.encode

    def remember(request: PhaseRequest) -> bytes:
        name = request.test.nodeid.partition("::")[2]
        if not asked or asked[-1][0] != name:
            asked.append((name, []))
        more = [name for name in ("call", "teardown") if getattr(request, f"with_{name}")]
        asked[-1][1].append("+".join([request.when, *more]))
        return encode(request)

    monkeypatch.setattr(PhaseRequest, "encode", remember)
    return asked
