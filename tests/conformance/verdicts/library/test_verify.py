"""`conformance.verify` in a test file of a library: its items, and how each ends."""

import subprocess
import sys

import pytest

from conformance import Claims

AVERAGED, UNTOUCHED = "ddp-gradients_averaged", "ddp-arguments_stay"


def test_each_check_is_an_item_that_can_be_selected(run_library):
    run = run_library("-v", "-k", AVERAGED)
    run.assert_outcomes(passed=1, deselected=run.parseoutcomes()["deselected"])
    run.stdout.fnmatch_lines(["test_mylib.py::test_conformance[[]ddp-gradients_averaged[]] PASSED*"])


def test_a_failure_that_is_not_listed_fails_with_its_cause_and_how_to_repeat_it(run_library):
    run = run_library("-k", AVERAGED, after_backward="mylib:summed")
    assert run.ret == pytest.ExitCode.TESTS_FAILED
    said = run.stdout.str()
    assert "summed, not averaged" in said
    assert "Smallest scenario: Scenario(" in said
    again = 'To repeat it: pytest "test_mylib.py::test_conformance[ddp-gradients_averaged]" --ddp-seed=0'
    assert f"{again} --ddp-world-size=2" in said


def test_a_failure_that_is_listed_is_expected(run_library):
    known = "# by design\nddp gradients_averaged it sums\n"
    run = run_library("-rx", "-k", AVERAGED, after_backward="mylib:summed", known=known)
    assert run.parseoutcomes()["xfailed"] == 1
    run.stdout.fnmatch_lines(["XFAIL *ddp-gradients_averaged* known failure: it sums"])


def test_a_regression_in_an_extended_property_fails_and_so_does_one_that_is_mended(run_library):
    run = run_library("-k", UNTOUCHED, wrap="mylib:WithGradients")
    assert run.ret == pytest.ExitCode.TESTS_FAILED
    assert "had a gradient already right after wrapping; expected None." in run.stdout.str()
    known = "ddp arguments_stay gradients are made at once\n"
    run = run_library("-k", UNTOUCHED, wrap="mylib:WithGradients", known=known)
    assert run.parseoutcomes()["xfailed"] == 1
    run = run_library("-k", UNTOUCHED, known=known)
    assert run.ret == pytest.ExitCode.TESTS_FAILED
    mended = "This check passes, and known_failures.txt lists it as a known failure. Delete line 1: "
    assert f"{mended}ddp arguments_stay gradients are made at once" in run.stdout.str()


def test_what_is_not_claimed_is_skipped_with_the_claim_as_the_reason(run_library):
    run = run_library("-rs", "-k", "initial_broadcast", claims=Claims(broadcasts="never"))
    assert run.parseoutcomes()["skipped"] == 1
    run.stdout.fnmatch_lines(["SKIPPED * test_mylib.py:*: ddp initial_broadcast: claimed is broadcasts='never'"])


def test_both_hold_a_wrapper_and_an_optimizer_together(run_library):
    zero = {"sharded": "torch.distributed.optim:ZeroRedundancyOptimizer"}
    run = run_library("--collect-only", "-q", **zero)
    assert {line.partition("[")[2].partition("-")[0] for line in run.outlines if "[" in line} == {
        *("ddp", "sharded_optimizer", "both")
    }
    assert "[both-" not in run_library("--collect-only", "-q", both=False, **zero).stdout.str()
    assert run_library("-k", "both-training_equals", **zero).parseoutcomes()["passed"] == 1


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"wrap": "mylib:not_written"}, 'mylib.py", line 32, in not_written'),
        (
            {"wrap": "mylib:average"},
            "wrap has the signature wrap(wrapped, optimizer); it is called as wrap(module) (",
        ),
        ({"wrap": "mylib:Missing"}, "module 'mylib' has no attribute 'Missing'"),
        ({"world_size": 1}, "--ddp-world-size=1: a single rank has nothing to synchronise; give 2 or more"),
    ],
)
def test_functions_that_cannot_be_used_fail_each_item(run_library, given, words):
    run = run_library("-k", "ddp-runs_to_the_end", **given)
    assert run.ret == pytest.ExitCode.TESTS_FAILED
    assert words in run.stdout.str()


def test_two_suites_in_one_file_have_ranks_of_their_own(run_library, pytester):
    assert run_library("-k", AVERAGED).parseoutcomes()["passed"] == 1
    suite = pytester.path / "test_mylib.py"
    text = suite.read_text()
    suite.write_text(f"{text}\n{text.replace('test_conformance', 'test_summed').replace('average', 'summed')}")
    run = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--ddp-world-size=2", "-v", "-k", AVERAGED)
    run.stdout.fnmatch_lines(["*::test_conformance[[]ddp-g* PASSED*", "*::test_summed[[]ddp-g* FAILED*"])


def test_an_exception_on_purpose_is_a_refusal_where_a_property_is_extended(run_library):
    run = run_library("-rs", "-k", "ddp-trains[float64]", wrap="mylib:no_float64")
    assert run.parseoutcomes()["skipped"] == 1
    reason = "ddp trains[[]float64[]]: refused, as it may be: TypeError: no float64"
    run.stdout.fnmatch_lines([f"SKIPPED * test_mylib.py:*: {reason}"])


@pytest.mark.long
def test_workers_of_xdist_have_the_same_items_and_one_report(library, tmp_path):
    (tmp_path / "mylib.py").write_text(library)
    suite = 'conformance.verify(wrap="mylib:WithGradients", after_backward="mylib:average", known_failures="known.txt")'
    (tmp_path / "test_mylib.py").write_text(f"import conformance\n\ntest_conformance = {suite}\n")
    (tmp_path / "known.txt").write_text("ddp runs_to_the_end no more\n")
    options = ["-n", "2", "--ddp-world-size=2", "--ddp-seed=3", "--update-known-failures"]
    chosen = "runs_to_the_end or arguments_stay or gradients_averaged"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", chosen, *options]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == pytest.ExitCode.OK, run.stdout + run.stderr
    assert "known.txt: 1 lines added, 1 deleted." in run.stdout
    listed = [line for line in (tmp_path / "known.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line.split()[:2] for line in listed] == [["ddp", "arguments_stay"]]


def test_a_name_that_the_library_lacks_is_told_with_the_call_that_has_it(run_library):
    run = run_library("-k", AVERAGED, wrap="mylib:Wraped")
    assert run.ret == pytest.ExitCode.TESTS_FAILED
    cause = "AttributeError: module 'mylib' has no attribute 'Wraped'"
    said = f"what `verify` names in test_mylib.py, line 4, cannot be imported: {cause}"
    assert said in run.stdout.str()
