"""A student's own grade: what is next comes first, and what is not begun is no failure."""

import argparse
import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from conformance.checks.aspect import Aspect
from conformance.cli import main
from conformance.commands import student
from conformance.commands.options import components
from conformance.components.registry import COMPONENTS
from conformance.grading.events import GradeBegan, Reports, SubmissionBegan, SubmissionEnded
from conformance.grading.formats.student import StudentReport
from conformance.grading.next_step import next_step
from conformance.grading.report import CheckReport, ComponentReport, Environment, Report
from conformance.grading.rubric import NO_RUBRIC, assigned, read_rubric

RIGHT = CheckReport("runs_to_the_end", "core", "passed", "Training runs to its end.")
SMALL = replace(RIGHT, id="trains[one_rank]", status="failed", message="On rank 0, w is 1, expected 2.")
WRONG = CheckReport(
    "gradients_averaged",
    "core",
    "failed",
    "Every gradient is the average.",
    message="On rank 0, the gradient of `w` is 4, expected 2.",
    diagnosis="Looks like *summed, not averaged*: divide by the number of ranks.",
    cause="summed",
    script="repro/a folder/flat_ddp-gradients_averaged.py",
)
ASPECTS = (Aspect("averaged", 3, ("gradients_averaged",), essential=True), Aspect("use", 1, ("trains[one_rank]",)))
NAIVE = ComponentReport("naive_ddp", (SMALL, replace(WRONG, status="passed")), ASPECTS)
FLAT = ComponentReport("flat_ddp", (SMALL, WRONG), ASPECTS)
RAISES = "`get_ddp` raises NotImplementedError (tests/adapters.py, line 57)"
EMPTY = ComponentReport("ddp", (replace(RIGHT, status="not_run"),), ASPECTS, submitted=False, not_implemented=RAISES)
ABSENT = replace(EMPTY, name="fsdp", not_implemented="")
REPORT = Report(".", Environment("2.15", "3.11", "gloo", "cpu", 4, 336, core_only=True), (NAIVE, FLAT, EMPTY, ABSENT))
SHOWN = """\
Next: flat_ddp: gradients_averaged failed
  Looks like *summed, not averaged*: divide by the number of ranks.
  On rank 0, the gradient of `w` is 4, expected 2.
  Required: Every gradient is the average.
  See it:         python 'repro/a folder/flat_ddp-gradients_averaged.py'
  Try it again:   pytest-ddp-grade replay 'repro/a folder/flat_ddp-gradients_averaged.json'
  Read about it:  pytest-ddp-grade explain flat_ddp gradients_averaged
  Grade it alone: pytest-ddp-grade . --components flat_ddp

After that
  naive_ddp: trains[one_rank]: On rank 0, w is 1, expected 2.
  flat_ddp: trains[one_rank]: On rank 0, w is 1, expected 2.

naive_ddp   failed         3 of 4 points
flat_ddp    failed         0 of 4 points
ddp         not started    0 of 4 points
all                       3 of 12 points
up to 4 ranks, seed 336, core checks only
"""


def shown(report, **ended):
    written = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    collected = Reports()
    listener = StudentReport(collected, console=Console(file=written, width=80))
    for event in (GradeBegan((report,)), SubmissionBegan("."), SubmissionEnded(**ended)):
        collected(event)
        listener(event)
    written.seek(0)
    return "\n".join(line.rstrip() for line in written.read().splitlines())


def test_the_first_essential_failure_is_next_and_the_rest_takes_a_line_each():
    assert shown(REPORT) == SHOWN


def test_what_keeps_the_adapters_from_loading_is_next_and_nothing_else():
    text = shown(REPORT, not_graded_because="the adapters cannot be imported: SyntaxError: '(' was never closed")
    assert text == "Next: mend the adapters\n  the adapters cannot be imported: SyntaxError: '(' was never closed\n"


def test_a_fault_of_the_grader_is_not_the_adapters():
    text = shown(REPORT, not_graded_because="an error in the grader: KeyError", harness_failed=True)
    assert text.startswith("Next: ask who runs the grader: it failed\n  an error in the grader: KeyError")


def test_where_a_course_has_not_graded_everything_the_reason_is_told():
    right = ComponentReport("naive_ddp", (RIGHT,), ASPECTS)
    left = replace(EMPTY, submitted=True, graded=False)
    step = next_step(replace(REPORT, components=(right, left), stopped_because="cut off after 60 s"))
    assert (step.heading, step.words) == ("ask your course: not everything was graded", ("cut off after 60 s.",))
    assert next_step(replace(REPORT, components=(right, left))).heading == "nothing yet"


def test_commands_install_what_the_grade_had_installed():
    step = next_step(replace(REPORT, environment=replace(REPORT.environment, packages=("einops", "jaxtyping"))))
    install = "--with einops --with jaxtyping"
    assert dict(step.commands)["Try it again"].endswith(f".json' {install}")
    assert dict(step.commands)["Grade it alone"] == f"pytest-ddp-grade . {install} --components flat_ddp"


def test_students_do_not_see_from_where_the_staff_install():
    packages = ("einops>=0.8", "git+https://user:password@example.edu/x.git", "/home/staff/x.whl", "x @ file:///y")
    step = next_step(replace(REPORT, environment=replace(REPORT.environment, packages=packages)), here=False)
    assert dict(step.commands)["Grade it alone"] == "pytest-ddp-grade . --with 'einops>=0.8' --components flat_ddp"


def test_elsewhere_commands_name_the_current_folder_and_no_files():
    step = next_step(replace(REPORT, submission="results/ada"), here=False)
    assert step.commands == (
        ("Read about it", "pytest-ddp-grade explain flat_ddp gradients_averaged"),
        ("Grade it alone", "pytest-ddp-grade . --components flat_ddp"),
    )


def test_what_could_not_be_judged_is_told_after_what_failed():
    broken = replace(SMALL, id="one_rank", status="error", message="Traceback ...")
    text = shown(replace(REPORT, components=(replace(FLAT, checks=(*FLAT.checks, broken)),)))
    assert "Not judged\n  flat_ddp: one_rank: an error in the grader, not in your code\n\nflat_ddp   error" in text


def test_what_is_not_begun_is_next_where_nothing_fails():
    step = next_step(replace(REPORT, components=(EMPTY, ABSENT)))
    assert (step.heading, step.words[0]) == ("write ddp", f"{RAISES}.")
    assert ("Read about it", "pytest-ddp-grade explain ddp") in step.commands
    lacking = replace(EMPTY, missing_functions=("ddp_on_after_backward(ddp_model, optimizer)",))
    step = next_step(replace(REPORT, components=(lacking,)))
    assert step.words[0] == "The adapters lack `ddp_on_after_backward(ddp_model, optimizer)`."


def test_of_a_component_that_cannot_be_called_its_page_is_named():
    wrong = CheckReport(
        "can_be_called", "core", "failed", "It takes the arguments.", message="get_ddp has no arguments"
    )
    step = next_step(replace(REPORT, components=(replace(FLAT, checks=(wrong,)),)))
    assert step.heading == "flat_ddp: can_be_called failed"
    assert ("Read about it", "pytest-ddp-grade explain flat_ddp") in step.commands


def test_what_a_course_names_is_next_also_if_nothing_of_it_is_there():
    right = ComponentReport("naive_ddp", (RIGHT,), ASPECTS)
    step = next_step(replace(REPORT, components=(right, ABSENT), named=True))
    assert (step.heading, step.words[0]) == ("write fsdp", "The adapters have no function of it.")


def test_where_everything_passes_extended_checks_are_next():
    right = ComponentReport("naive_ddp", (RIGHT,), ASPECTS)
    step = next_step(replace(REPORT, components=(right, ABSENT)))
    assert step.commands == (("Run those too", "pytest-ddp-grade . --extended"),)
    with_extended = replace(REPORT.environment, core_only=False)
    step = next_step(replace(REPORT, environment=with_extended, components=(right, ABSENT)))
    assert (step.words, step.commands) == (("Everything that was graded passes.",), ())


def test_extended_checks_that_failed_come_last():
    extended = replace(WRONG, id="trains[buffers]", level="extended")
    report = replace(REPORT, components=(replace(NAIVE, checks=(extended, *NAIVE.checks)),))
    assert next_step(report).heading == "naive_ddp: trains[one_rank] failed"
    right = replace(NAIVE, checks=(RIGHT, extended))
    heading = next_step(replace(report, components=(right,))).heading
    assert heading == "naive_ddp: trains[buffers] failed (extended, no points)"


def test_where_a_component_passes_alone_the_others_are_next():
    right = ComponentReport("naive_ddp", (RIGHT,), ASPECTS)
    step = next_step(replace(REPORT, components=(right,)))
    assert step.commands == (
        ("Grade everything", "pytest-ddp-grade ."),
        ("Run those too", "pytest-ddp-grade . --components naive_ddp --extended"),
    )


@pytest.mark.parametrize("status", ["not_gradable", "error"])
def test_what_could_not_be_judged_is_next_where_nothing_fails(status):
    part = ComponentReport("ddp", (replace(RIGHT, status=status, message="einops is missing: --with einops"),))
    step = next_step(replace(REPORT, components=(part,)))
    assert (step.heading, step.words[0]) == ("ddp could not be judged", "einops is missing: --with einops")


def test_where_nothing_is_begun_the_adapters_are_next():
    assert next_step(replace(REPORT, components=(ABSENT,))).heading == "write the adapters"
    assert next_step(replace(REPORT, components=(ABSENT,), finished=False)).heading == "nothing yet"


def options(**given):
    return argparse.Namespace(
        **{"paths": [], "seed": None, "core": None, "rubric": None, "components": None, "small": False} | given
    )


def test_a_student_leaves_out_seed_extended_checks_and_rubric(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left_out = options()
    student.fill_in(left_out)
    assert (left_out.paths, left_out.seed, student.core_only(left_out, NO_RUBRIC)) == (["."], student.PUBLIC_SEED, True)
    assert left_out.rubric is None
    Path("rubric.toml").write_text("[flat_ddp]\nbonus = 1\n[sharded_optimizer]\nbonus = 1\n", encoding="utf-8")
    asked = options(seed=0)
    student.fill_in(asked)
    assert (asked.seed, asked.rubric) == (0, Path("rubric.toml"))
    assert not student.core_only(asked, read_rubric(asked.rubric)), "extended checks have bonus points"
    assert student.core_only(options(paths=["."], core=True), read_rubric(asked.rubric))
    assert not student.core_only(options(paths=["."], core=False), NO_RUBRIC)
    assert components(asked, read_rubric(asked.rubric)) == ("flat_ddp", "sharded_optimizer")
    assert student.is_student(options(paths=["./"]))
    assert not student.is_student(options(paths=[str(tmp_path)]))


def test_without_a_rubric_the_course_is_all_that_has_functions_of_its_own():
    assert set(COMPONENTS) - set(assigned()) == {"both", "engine"}
    assert components(options(), NO_RUBRIC) == ()
    assert components(options(components="ddp,both,ddp"), NO_RUBRIC) == ("ddp", "both")


TEMPLATE = """
    def get_ddp(module):
        raise NotImplementedError
    def ddp_on_after_backward(ddp_model, optimizer):
        raise NotImplementedError
    def get_sharded_optimizer(params, optimizer_cls, **kwargs):
        raise NotImplementedError
    """


@pytest.mark.usefixtures("one_server")
def test_an_empty_template_is_not_started(submit, monkeypatch, capsys):
    monkeypatch.chdir(submit("", tests__adapters=TEMPLATE))
    Path("adapters.py").unlink()
    assert main(["--world-size", "2"]) == 2
    said = capsys.readouterr()
    assert said.out.startswith(
        "Next: write ddp\n  `get_ddp` raises NotImplementedError (tests/adapters.py, line 3)."
    ), said
    assert said.out.count("not started") == 2
    assert "seed 336, core checks only" in said.out


def test_where_there_are_no_adapters_the_message_says_where_to_start(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
    assert "; start in your repository, or give its path" in capsys.readouterr().err
