"""The report for people: at 80 columns, without colour where there is none, and the cause of each failure first."""

import io
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from conformance.checks.aspect import Aspect
from conformance.components.registry import COMPONENTS
from conformance.grading.events import GradeBegan, Reports, SubmissionBegan, SubmissionEnded
from conformance.grading.formats.console import ConsoleReport
from conformance.grading.grade import Grading, grade_check
from conformance.grading.report import CheckReport, ComponentReport, Environment, Report
from conformance.scenarios.scenario import Scenario
from conformance.test_submission import test_submission as hold

RIGHT = CheckReport("runs_to_the_end", "core", "passed", "Training runs to its end.")
WRONG = CheckReport(
    "gradients_averaged",
    "core",
    "failed",
    "Every gradient is the average over the ranks.",
    message="On rank 0, the gradient of `w` is 4, expected 2.",
    diagnosis="Looks like *summed, not averaged*: divide by the number of ranks.",
    cause="summed",
    script="repro/a/folder/with/a/path/that/is/longer/than/a/line/naive_ddp-gradients_averaged.py",
    scenario=Scenario(),
)
EXTENDED = CheckReport("buffers", "extended", "failed", "Buffers are those of rank 0.", message="They differ.")
BROKEN = CheckReport("one_rank", "core", "error", "One rank trains.", message="Traceback: no [bold]memory[/]")
WAITING = replace(
    RIGHT,
    id="ranks_stay_identical",
    status="not_run",
    message="not run: gradients_averaged must pass first",
    behind="gradients_averaged",
)
ASPECTS = (
    Aspect("gradients are averaged", 2, ("gradients_averaged", "ranks_stay_identical"), essential=True),
    Aspect("training", 3, ("runs_to_the_end",)),
)
REPORT = Report(
    "students/[a]/ddp",
    Environment("2.15.0", "3.11.7", "gloo", "cpu", 4, 7, core_only=True),
    (
        ComponentReport("naive_ddp", (RIGHT, WRONG, EXTENDED, WAITING), ASPECTS, uses_from_torch=("torch.x.Y",)),
        ComponentReport("flat_ddp", (BROKEN,), new_processes=True),
        ComponentReport("ddp", (WAITING,), submitted=False, missing_functions=("ddp_on_after_backward(m, o)",)),
    ),
    stand_ins=("package triton",),
)
SHOWN = """\
students/[a]/ddp
up to 4 ranks, torch 2.15.0, seed 7, core checks only
+------------------------------------------------------------------------------+
| component                | verdict | points | core checks that did not pass  |
|--------------------------+---------+--------+--------------------------------|
| naive_ddp                | failed  |  2 / 5 | at most 40% without 'gradients |
|                          |         |        | are averaged'                  |
|   gradients are averaged | missing |  0 / 2 | gradients_averaged             |
|                          |         |        | 1 not run                      |
|   training               | passed  |  3 / 3 |                                |
| flat_ddp                 | error   |  0 / 0 | one_rank                       |
+------------------------------------------------------------------------------+
Not submitted: ddp
Missing: ddp_on_after_backward(m, o), for ddp
Not on this machine, replaced: package triton
Torch's own: naive_ddp uses torch.x.Y
In new processes: flat_ddp fails in a process that ran something before

naive_ddp: gradients_averaged  failed
  Looks like *summed, not averaged*: divide by the number of ranks.
  On rank 0, the gradient of `w` is 4, expected 2.
  Required: Every gradient is the average over the ranks.
  Smallest scenario: Scenario()
  See it yourself: python repro/a/folder/with/a/path/that/is/longer/than/a/line/naive_ddp-gradients_averaged.py

flat_ddp: one_rank  error in the grader, not in the submission
  Traceback: no [bold]memory[/]
  Required: One rank trains.

Extended checks that failed (they have no points):
  naive_ddp: buffers: They differ.
"""


def shown(*events, encoding="ascii", **console):
    """Return what the console report prints on events, without spaces at the ends of lines."""
    written = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    collected = Reports()
    listener = ConsoleReport(collected, Console(file=written, width=80, **console))
    for event in events:
        collected(event)
        listener(event)
    written.seek(0)
    return "\n".join(line.rstrip() for line in written.read().splitlines())


def test_a_report_is_plain_text_where_there_is_no_terminal(capsys):
    assert shown(GradeBegan((REPORT,)), SubmissionBegan("x")) == ""
    text = shown(GradeBegan((REPORT,)), SubmissionBegan("x"), SubmissionEnded(stand_ins=REPORT.stand_ins))
    assert text == SHOWN
    assert capsys.readouterr() == ("", "")


def test_on_a_terminal_that_wants_none_it_has_no_colour():
    ended = GradeBegan((REPORT,)), SubmissionBegan("x"), SubmissionEnded()
    assert "\x1b[31mfailed" in shown(*ended, force_terminal=True, color_system="standard", no_color=False)
    assert "\x1b[31m" not in shown(*ended, force_terminal=True, color_system="standard", no_color=True)


def test_why_there_is_no_report_goes_to_standard_error(capsys):
    assert shown(GradeBegan((REPORT,)), SubmissionBegan("x"), SubmissionEnded("nothing is there")) == ""
    assert capsys.readouterr().err == "conformance: nothing is there\n"


def test_a_check_says_which_other_one_must_pass_first():
    check = next(check for check in COMPONENTS["naive_ddp"].checks if check.requires)
    failed = {required: replace(WRONG, id=required) for required in check.requires}
    report = grade_check("naive_ddp", check, None, Grading(1, 2, ("naive_ddp",), 1), failed)
    assert (report.status, report.message) == ("not_run", f"not run: {check.requires[0]} must pass first")
    assert report.behind == check.requires[0]


@pytest.mark.parametrize(
    ("report", "outcome", "words"),
    [
        (WRONG, pytest.fail, "Looks like *summed, not averaged*: divide by the number of ranks.\n\nOn rank 0, the"),
        (WRONG, pytest.fail, "Required: Every gradient is the average over the ranks.\n\nSmallest scenario: Scenario"),
        (
            WRONG,
            pytest.fail,
            "Scenario()\nTo repeat it: --ddp-seed=1. For a script without this suite: pytest-ddp-grade a ",
        ),
        (BROKEN, pytest.fail, "an error in the grader, not in the submission:\n\nTraceback: no"),
        (EXTENDED, pytest.xfail, "extended check: They differ.\n\nRequired: Buffers are those of rank 0."),
        (WAITING, pytest.skip, "not run: gradients_averaged must pass first"),
    ],
)
def test_as_tests_each_verdict_has_its_words(report, outcome, words):
    asked = SimpleNamespace(grading=Grading(1, 2, (), 1), executor=SimpleNamespace(location=SimpleNamespace(given="a")))
    grader = SimpleNamespace(submitted=["naive_ddp"], verdict=lambda *_: report, **vars(asked))
    with pytest.raises(outcome.Exception) as raised:
        hold("naive_ddp", report.id, grader)
    assert words in str(raised.value)


def test_as_tests_a_component_that_is_not_submitted_is_skipped():
    grader = SimpleNamespace(submitted=[], executor=SimpleNamespace(missing={"ddp": ("get_ddp(module)",)}))
    for component, words in (("flat_ddp", "flat_ddp is not submitted"), ("ddp", "ddp lacks get_ddp(module)")):
        with pytest.raises(pytest.skip.Exception, match=words.replace("(", r"\(").replace(")", r"\)")):
            hold(component, "one_rank", grader)
