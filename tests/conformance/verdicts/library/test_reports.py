"""What a run of suites says in CI: JUnit's properties, annotations of GitHub Actions, and a summary in Markdown."""

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from conformance.grading.report import CheckReport
from conformance.library.known_failures import KnownFailure
from conformance.library.result import Result
from conformance.library.ruling import Ruling, of_the_whole, rule
from conformance.library.summary import Item, annotations, to_markdown

REPORT = CheckReport("no_sync", "extended", "passed", "Nothing is sent.")
KNOWN = KnownFailure("ddp", "no_sync", "it sends", 3)
MENDED = "and known.txt lists it as a known failure. Delete line 3: ddp no_sync it sends"


@pytest.mark.parametrize(
    ("changes", "known", "ruling"),
    [
        ({}, None, Ruling("passed")),
        ({}, KNOWN, Ruling("mended", f"This check passes, {MENDED}")),
        (
            {"status": "failed", "message": "Two were sent."},
            None,
            Ruling("new", "Two were sent.\n\nRequired: Nothing is sent.", "Two were sent."),
        ),
        (
            {"status": "failed", "message": "Two were sent.", "diagnosis": "Looks like one.", "cause": "one"},
            KNOWN,
            Ruling("known", "known failure: it sends", "Looks like one."),
        ),
        ({"status": "not_run", "message": "refused: No.", "refused": True}, None, Ruling("refused", "refused: No.")),
        (
            {"status": "not_run", "message": "refused: No.", "refused": True},
            KNOWN,
            Ruling("mended", f"This check does not run (refused: No.), {MENDED}"),
        ),
        ({"status": "not_run", "message": "claimed", "unclaimed": True}, None, Ruling("unclaimed", "claimed")),
        ({"status": "not_run", "message": "not run: a", "behind": "a"}, KNOWN, Ruling("not_run", "not run: a")),
        ({"status": "not_run", "message": "it has no `no_sync`"}, None, Ruling("not_run", "it has no `no_sync`")),
        (
            {"status": "error", "message": "Traceback"},
            KNOWN,
            Ruling(
                "error",
                "an error in the grader, not in the submission:\n\nTraceback\n\nRequired: Nothing is sent.",
                "Traceback",
            ),
        ),
        (
            {"status": "not_gradable", "message": "no GPU"},
            None,
            Ruling("error", "no GPU\n\nRequired: Nothing is sent.", "no GPU"),
        ),
    ],
)
def test_each_outcome_is_ruled_against_the_file_of_known_failures(changes, known, ruling):
    assert rule(replace(REPORT, **changes), known, "known.txt") == ruling


def test_a_component_that_cannot_be_called_is_an_error_in_each_item():
    report = CheckReport("can_be_called", "core", "failed", "It can be called.", message="It takes two arguments.")
    assert of_the_whole(report) == Ruling("error", "It takes two arguments.", "It takes two arguments.")


def test_an_update_expects_what_is_new_and_accepts_what_is_mended():
    assert Ruling("new", "all", "one").updating("f.txt") == Ruling("known", "new in f.txt: one", "one")
    assert Ruling("mended", "delete").updating("f.txt") == Ruling("passed")
    assert Ruling("error", "no").updating("f.txt") == Ruling("error", "no")


def result(check: str, verdict: str, text: str = "", left_out: str = "") -> Result:
    return Result("ddp", check, "core", verdict, text, "", "10", left_out, "known.txt", "")


def items(*results: Result) -> list[Item]:
    return [Item(one, "tests/test_mylib.py::test_conformance", "tests/test_mylib.py", 4) for one in results]


def test_a_result_survives_the_trip_through_a_report():
    one = result("no_sync", "new", "it sends")
    properties = [("of another plugin", 1), *one.to_properties()]
    assert Result.from_properties(properties) == one
    assert Result.from_properties(properties[:1]) is None


def test_the_summary_says_what_is_new_first_and_what_was_not_asked():
    text = to_markdown(
        items(
            result("a", "passed"),
            result("b", "passed", left_out="claimed is unused='never'"),
            result("c", "known", "known failure: it sends"),
            replace(result("d", "new", "is off | by <2>"), script="repro/d.py"),
            result("e", "mended", "Delete line 3"),
            result("f", "refused", "No."),
            result("g", "unclaimed", "claimed is lossy"),
            result("h", "not_run", "not run: d must pass first"),
        )
    )
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "## tests/test_mylib.py::test_conformance: 2 of 6 checks passed",
        "### New failures, which the file of known failures does not list: 1",
        "### Known failures that are none any more: delete their lines: 1",
        "### Known failures: 1",
        "### Refused, which the library may: 1",
        "### Not claimed: 1",
        "### Not run: 1",
        "### Passed without the scenarios that are not claimed: 1",
    ]
    assert "| `ddp d` | is off \\| by &lt;2> (`python repro/d.py`) |" in text
    assert "| `ddp b` | claimed is unused='never' |" in text


def test_a_summary_without_news_says_so():
    text = to_markdown(items(result("a", "passed")))
    assert text == (
        "## tests/test_mylib.py::test_conformance: 1 of 1 checks passed\n\n"
        "Nothing is new against the file of known failures.\n"
    )


def test_what_makes_the_run_red_is_annotated_at_the_call_of_verify():
    red = items(*(result(f"c{number}", "new", "off: by 2\nlines") for number in range(11)))
    lines = list(annotations([*items(result("a", "known")), *red]))
    assert len(lines) == 10, "GitHub shows no more of a step"
    assert lines[0] == "::error file=tests/test_mylib.py,line=4,title=ddp c0::off: by 2%0Alines"


def test_a_run_in_github_actions_writes_all_reports(run_library, pytester, monkeypatch):
    step = pytester.path / "step.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    summary = ("--conformance-summary=summary.md", "--junitxml=junit.xml")
    pytester.makeconftest("import os\n\ndef pytest_configure(): os.environ['GITHUB_ACTIONS'] = 'true'")
    monkeypatch.setenv("GITHUB_ACTIONS", "false")  # set back after the test
    run = run_library("-k", "ddp-gradients_averaged", *summary, after_backward="mylib:summed")
    error = "::error file=test_mylib.py,line=4,title=ddp gradients_averaged::Looks like [*]summed, not averaged[*]*"
    run.stdout.fnmatch_lines([error])
    text = (pytester.path / "summary.md").read_text()
    assert text == step.read_text()
    assert "| `ddp gradients_averaged` | Looks like *summed, not averaged*" in text
    properties = ET.parse(pytester.path / "junit.xml").getroot().findall(".//property")  # noqa: S314  our own file
    found = {one.get("name"): one.get("value") for one in properties}
    assert found["conformance.verdict"] == "new"
    assert (found["conformance.component"], found["conformance.level"]) == ("ddp", "core")


def test_an_update_writes_the_file_and_the_run_is_green(run_library, pytester):
    chosen = ("-k", "ddp-runs_to_the_end or ddp-arguments_stay")
    known = "# ours\nddp runs_to_the_end no more\n"
    run = run_library(*chosen, "--update-known-failures", wrap="mylib:WithGradients", known=known)
    run.assert_outcomes(passed=1, xfailed=1, deselected=run.parseoutcomes()["deselected"])
    run.stdout.fnmatch_lines(["known_failures.txt: 1 lines added, 1 deleted. Put your own reasons in place of*"])
    kept, added = (pytester.path / "known_failures.txt").read_text().splitlines()
    assert kept == "# ours"
    assert added.startswith("ddp arguments_stay ")
    run = run_library(*chosen, wrap="mylib:WithGradients", known=None)
    run.assert_outcomes(passed=1, xfailed=1, deselected=run.parseoutcomes()["deselected"])
