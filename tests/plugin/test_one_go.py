"""Setup and call as one run of the ranks: seen from outside, nothing but faster."""

import json

import pytest

from pytest_ddp.phase import PhaseRequest

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
        asked[-1][1].append(f"{request.when}+call" if request.with_call else request.when)
        return encode(request)

    monkeypatch.setattr(PhaseRequest, "encode", remember)
    return asked
