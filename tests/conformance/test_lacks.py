"""What the grading machine lacks is never the submission's fault: it is not gradable there, and is told what to add."""

import io
import sys
import types
from dataclasses import replace

import pytest
from rich.console import Console

from conformance.cli import main
from conformance.grading.formats.console import show
from conformance.grading.report import (
    FAILED,
    HARNESS_ERROR,
    NOT_GRADED,
    PASSED,
    CheckReport,
    ComponentReport,
    Environment,
    Report,
)
from conformance.ranks.lacks import lacking
from conformance.submissions.location import Location

RIGHT = """
    import torch.distributed as dist
    import swanlab

    def get_naive_ddp(module):
        PREPARE
        for parameter in module.parameters():
            dist.broadcast(parameter.data, 0)
        return module

    def naive_ddp_on_after_backward(ddp_model, optimizer):
        for parameter in ddp_model.parameters():
            if parameter.grad is not None:
                AVERAGE
    """
AVERAGE = "dist.all_reduce(parameter.grad); parameter.grad /= dist.get_world_size()"
CHECK = CheckReport("runs_to_the_end", "core", "not_run", "Training runs to its end.", 1.0)
ENVIRONMENT = Environment("2", "3", "gloo", "cpu", 2, 1)
NEWER = f">=3.{sys.version_info.minor + 1}"


@pytest.mark.parametrize(
    ("prepare", "average", "words"),
    [
        ("", "parameter.grad.copy_(swanlab.mean(parameter.grad))", "computes with swanlab, which this machine lacks"),
        ("", "parameter.grad *= swanlab.weight", "grade it with `--with swanlab`"),
        ("from typing import not_yet_invented", AVERAGE, "Another version of Python has it, and this machine has 3."),
        (
            "import no_such_package.part",
            AVERAGE,
            "imports no_such_package, which this machine lacks: if that is its name, grade it with `--",
        ),
        ("open('data/vocabulary.txt')", AVERAGE, "lacks data/vocabulary.txt, which the submission looks for: put it"),
    ],
)
def test_a_component_that_needs_more_than_there_is_here_is_not_gradable(grade_path, submit, prepare, average, words):
    path = submit(RIGHT.replace("PREPARE", prepare).replace("AVERAGE", average))
    report = grade_path(path, components=["naive_ddp"], world_size=2, examples=1, core=True)
    (component,) = report.components
    first, *others = component.checks
    assert (component.status, first.status, report.exit_code) == ("not_gradable", "not_gradable", NOT_GRADED)
    assert {check.status for check in others} == {"not_run"}
    assert words in first.message


def test_what_an_extended_check_alone_needs_costs_nothing(held_to, submit):
    path = submit(RIGHT.replace("PREPARE", "open('data/vocabulary.txt')").replace("AVERAGE", AVERAGE))
    found = held_to(path, "naive_ddp", "trains[used_on_some_ranks]", world_size=2, examples=1)
    assert (found.check.level, found.status) == ("extended", "not_run")
    assert "This machine lacks data/vocabulary.txt" in found.message


@pytest.mark.usefixtures("one_server")
def test_adapters_that_cannot_be_imported_for_such_a_reason_say_so(capsys, submit):
    assert main([str(submit("import no_such_package")), "--world-size", "2"]) == NOT_GRADED
    assert (
        "imports no_such_package, which this machine lacks: if that is its name, grade it with `--with no_such_pa"
        in capsys.readouterr().err
    )


def raised(text, module=None):
    """The exception that code raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  any
        exec(text, vars(module or types.ModuleType("empty")))  # noqa: S102
    return caught.value


@pytest.mark.parametrize(
    ("text", "requires", "words"),
    [
        ("import mine.absent", "", ""),
        ("import typing; typing.not_yet_invented", "", ""),
        ("import typing; typing.not_yet_invented", NEWER, f"asks for Python {NEWER}, and"),
        ("def broken(:", "", ""),
        ("def broken(:", NEWER, f"asks for Python {NEWER}, and"),
        ("def broken(:", ">=3.8", ""),
        ("type Alias = ]", "", "Another version of Python has it"),
        ("open('/tmp/never_written')", "", ""),
        ("raise ValueError", "", ""),
        ("raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})", "", ""),
    ],
)
def test_a_mistake_is_not_taken_for_a_lack(tmp_path, text, requires, words):
    (tmp_path / "mine").mkdir()
    (tmp_path / "pyproject.toml").write_text(f'[project]\nrequires-python = "{requires}"')
    location = Location("here", "adapters", str(tmp_path / "adapters.py"), str(tmp_path), (str(tmp_path),))
    found = lacking(raised(text), location)
    assert words in found
    assert bool(words) == bool(found)


def test_the_table_says_what_is_missing_and_not_what_was_earned():
    lack = replace(CHECK, status="not_gradable", message="It computes with x: grade it with `--with x`.")
    report = Report("x", ENVIRONMENT, (ComponentReport("naive_ddp", (lack, replace(CHECK, id="second"))),))
    console = Console(file=io.StringIO(), width=120)
    show(report, console)
    table = console.file.getvalue()
    row = next(line for line in table.splitlines() if "naive_ddp" in line)
    assert [cell.strip() for cell in row.strip("│ ").split("│")] == ["naive_ddp", "not_gradable", "", lack.message]
    assert "naive_ddp: runs_to_the_end  not gradable on this machine" in table


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["passed", "not_submitted"], PASSED),
        (["passed", "failed"], FAILED),
        (["not_submitted"], NOT_GRADED),
        (["failed", "not_gradable"], NOT_GRADED),
        (["not_gradable", "error"], HARNESS_ERROR),
    ],
)
def test_the_exit_code_asks_for_what_staff_must_see_first(verdicts, code):
    components = []
    for verdict in verdicts:
        check = CHECK if verdict == "not_submitted" else replace(CHECK, status=verdict)
        components.append(ComponentReport(verdict, (check,), submitted=verdict != "not_submitted"))
    assert [one.status for one in components] == verdicts
    assert Report("x", ENVIRONMENT, tuple(components)).exit_code == code
