"""The forms of a report for other programs and for people: each is valid whatever a submission wrote into it."""

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

from conformance.checks.aspect import Aspect
from conformance.grading.events import CheckEnded, GradeBegan, Reports, SubmissionBegan, SubmissionEnded
from conformance.grading.formats import FORMATS
from conformance.grading.formats.github import InActions, annotations
from conformance.grading.formats.gradescope import to_gradescope
from conformance.grading.formats.html import to_html
from conformance.grading.formats.junit import to_junit
from conformance.grading.formats.markdown import to_markdown
from conformance.grading.formats.report_file import ReportFile
from conformance.grading.report import CheckReport, ComponentReport, Environment, Report
from conformance.scenarios.scenario import Scenario

HOSTILE = "</pre><script>alert(1)</script>\n```\n</details>\n::error::forged \x00\x1b[31m ]]> &"
RIGHT = CheckReport("runs_to_the_end", "core", "passed", "Training runs to its end.", seconds=1.5)
WRONG = CheckReport(
    "gradients_averaged",
    "core",
    "failed",
    "Every gradient is the average.",
    message=HOSTILE,
    diagnosis="Looks like *summed, not averaged*: divide by `dist.get_world_size()`.",
    cause="summed",
    script="repro/naive_ddp-gradients_averaged.py",
    scenario=Scenario(),
    timeline=(("backward", "all_reduce 16 B", "<b>wait 0</b>"), ("backward",)),
)
BEHIND = replace(RIGHT, id="trains", status="not_run", message="not run: gradients_averaged must pass first")
EXTENDED = replace(WRONG, id="trains[buffers]", level="extended", diagnosis="")
ASPECTS = (
    Aspect("gradients are averaged", 3, ("gradients_averaged",), essential=True),
    Aspect("training", 2, ("runs_to_the_end", "trains")),
)
COMPONENTS = (
    ComponentReport("naive_ddp", (RIGHT, WRONG, replace(BEHIND, behind="gradients_averaged"), EXTENDED), ASPECTS),
    ComponentReport("flat_ddp", (RIGHT,), (Aspect("training", 4, ("runs_to_the_end",)),)),
    ComponentReport("ddp", (BEHIND,), (Aspect("training", 5, ("trains",)),), submitted=False),
)
REPORT = Report("students/<b>a*b</b>", Environment("2.15", "3.11", "gloo", "cpu", 4, 7), COMPONENTS)
REFUSED = replace(REPORT, submission="b", not_graded_because=f"it does not import: {HOSTILE}")


def test_gradescope_gets_a_test_for_each_aspect_and_the_score_of_all():
    results = json.loads(to_gradescope([REPORT]))
    assert results["score"] == 5.0
    assert [(test["name"], test.get("score"), test.get("max_score"), test["status"]) for test in results["tests"]] == [
        ("naive_ddp: gradients are averaged", 0.0, 3, "failed"),
        ("naive_ddp: training", 1.0, 2, "failed"),
        ("naive_ddp: trains[buffers] (extended, no points)", None, None, "failed"),
        ("flat_ddp: training", 4.0, 4, "passed"),
        ("ddp", 0.0, 5, "failed"),
    ]
    assert results["tests"][-1]["output"] == "not submitted"
    assert "seed" not in results["output"].lower(), "students would grade with it"


def test_gradescope_is_told_why_there_is_no_score():
    results = json.loads(to_gradescope([replace(REFUSED, components=())]))
    assert results["score"] == 0
    assert "it does not import" in results["output"]


def properties(element):
    return {one.get("name"): one.get("value") for one in element.find("properties")}


def test_gradescope_has_what_is_judged_of_a_component_that_has_not_ended():
    begun = replace(COMPONENTS[0], graded=False)
    results = json.loads(to_gradescope([replace(REPORT, components=(begun, *COMPONENTS[1:]), finished=False)]))
    assert results["score"] == sum(test.get("score", 0) for test in results["tests"]) == 5.0
    assert results["output"].startswith("The grade has not ended")
    alone = json.loads(to_gradescope([replace(REPORT, components=(begun,), finished=False)]))
    assert [test["score"] for test in alone["tests"] if "score" in test] == [0.0, 1.0]
    assert "`naive_ddp`: not ended, 1 of 5 points" in alone["output"]


def test_the_file_for_gradescope_is_written_after_each_check(tmp_path):
    planned = replace(
        REPORT, components=(replace(COMPONENTS[0], checks=(replace(RIGHT, status="not_run"),), graded=False),)
    )
    reports = Reports()
    forms = {form.option: form for form in FORMATS}
    files = [ReportFile(tmp_path / option, forms[option], reports) for option in ("--json", "--gradescope")]
    for event in (GradeBegan((planned,)), SubmissionBegan("x"), CheckEnded("naive_ddp", RIGHT)):
        for listener in (reports, *files):
            listener(event)
    assert json.loads((tmp_path / "--gradescope").read_text())["score"] == 1.0
    assert json.loads((tmp_path / "--gradescope").read_text())["tests"]
    assert '"passed"' not in (tmp_path / "--json").read_text()


def test_junit_is_xml_with_a_case_for_each_check():
    first, second = ET.fromstring(to_junit([REPORT, REFUSED]))  # noqa: S314  our own text
    assert (first.get("tests"), first.get("failures"), first.get("skipped"), second.get("errors")) == (
        "5",
        "1",
        "2",
        "1",
    )
    wrong = first.find("testcase[@name='gradients_averaged']")
    assert wrong.find("failure").get("message") == "</pre><script>alert(1)</script>"
    assert "Looks like *summed, not averaged*" in wrong.find("failure").text
    worth = {"aspect": "gradients are averaged", "points": "0", "max_points": "3"}
    assert properties(wrong) == {"level": "core", "examples": "0", **worth}
    assert properties(first) == {"seed": "7", "world_size": "4", "torch": "2.15", "device": "cpu"}


def test_markdown_keeps_what_a_submission_says_inside_its_block():
    text = to_markdown([REPORT, REFUSED])
    assert text.startswith("## students/\\<b\\>a\\*b\\</b\\>\n")
    assert text.count("````text\n") == text.count("\n````\n") == 3
    assert "| gradients are averaged, missing | | 0 of 3 |" in text


def test_a_function_that_is_missing_is_named_where_the_component_has_no_points():
    lacking = replace(REPORT, components=(replace(COMPONENTS[2], missing_functions=("ddp_on_after_backward",)),))
    said = "The adapters lack `ddp_on_after_backward`."
    assert f"- `ddp`: not submitted, 0 of 5 points. {said}\n" in to_markdown([lacking])
    results = json.loads(to_gradescope([lacking]))
    assert results["tests"][0]["output"] == said
    assert said in results["output"]


def test_markdown_is_cut_between_failures_before_it_is_too_long():
    long = replace(WRONG, message="x" * 300_000)
    checks = tuple(replace(long, id=f"check_{number}") for number in range(6))
    text = to_markdown([replace(REPORT, components=(ComponentReport("ddp", checks),))])
    assert len(text.encode()) < 2**20
    assert text.count("</details>") == 3
    assert "The report is cut here" in text


def test_in_github_actions_only_our_own_commands_are_obeyed(capsys):
    reports = Reports([replace(REPORT, submission="a:b"), REFUSED], 0)
    InActions(lambda _: print(HOSTILE), reports)(SubmissionEnded())
    lines = capsys.readouterr().out.splitlines()
    token = lines[0].removeprefix("::stop-commands::")
    assert len(token) == 32
    end = lines.index(f"::{token}::")
    assert "::error::forged \x00\x1b[31m ]]> &" in lines[:end]
    (annotation,) = lines[end + 1 :]
    title = "::error title=a%3Ab%3A naive_ddp%3A gradients_averaged::"
    assert annotation.startswith(f"{title}</pre><script>alert(1)</script>%0ALooks like *summed, not averaged*")
    assert "%0A::error::forged" in annotation


def test_ten_annotations_are_enough_and_a_refused_submission_has_one():
    many = tuple(replace(WRONG, id=f"check_{number}") for number in range(12))
    assert len(list(annotations(replace(REPORT, components=(ComponentReport("ddp", many),))))) == 10
    (line,) = annotations(REFUSED)
    assert line.startswith("::error title=b::it does not import: </pre>")


def test_html_shows_what_a_submission_says_as_text():
    page = to_html([REPORT, REFUSED])
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "divide by <code>dist.get_world_size()</code>" in page
    assert "at most 40%" in page
    assert page.count(">rank 1</text>") == 4
    assert "&lt;b&gt;wait 0&lt;/b&gt;</text>" in page


def test_html_says_first_what_to_do_and_lets_nothing_be_fetched():
    page = to_html([REPORT, replace(REPORT, submission=".")])
    assert page.index("Next:") < page.index('<section class="component"')
    assert "<h1>Your code</h1>" in page
    assert "pytest-ddp-grade explain naive_ddp gradients_averaged" in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert "Looks like <em>summed, not averaged</em>: divide by <code>dist.get_world_size()</code>" in page


def test_marks_in_messages_that_nothing_closes_stay_as_they_are():
    message = "2 * 3 *kwargs `open <b>"
    page = to_html(
        [replace(REPORT, components=(ComponentReport("ddp", (replace(WRONG, cause="", message=message),)),))]
    )
    assert "2 * 3 *kwargs `open &lt;b&gt;" in page
