"""Progress is on a terminal from the first moment, never beside a report, and elsewhere a line per component."""

import io
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from conformance.checks.aspect import Aspect
from conformance.grading.events import (
    CheckBegan,
    CheckEnded,
    ComponentBegan,
    ComponentEnded,
    GradeBegan,
    SubmissionBegan,
    SubmissionEnded,
)
from conformance.grading.progress import LiveProgress, write_lines
from conformance.grading.report import CheckReport, ComponentReport, Environment, Report

EXAMPLE = Path(__file__).parents[2] / "examples" / "summed_gradients"
WRONG = CheckReport("gradients_averaged", "core", "failed", "It is right.")
ASPECTS = (Aspect("averaged", 2, ("gradients_averaged",)), Aspect("alone", 2, ("one_rank",)))
GRADED = ComponentReport("naive_ddp", (WRONG, replace(WRONG, id="one_rank", status="passed")), ASPECTS)
PLANNED = Report("x", Environment("2", "3", "gloo", "cpu", 2, 1), (GRADED,), finished=False)
CLEAR_LINE = "\x1b[2K"


@pytest.fixture
def terminal():
    """Eighty columns that understand escape sequences, without colour."""
    return Console(file=io.StringIO(), width=80, force_terminal=True, no_color=True, legacy_windows=False)


def lines_after(terminal, *events):
    """Return what a terminal shows after events."""
    shown = LiveProgress(terminal)
    for event in events:
        shown(event)
    shown.live.stop()
    with terminal.capture() as captured:
        terminal.print(shown)
    return re.sub(r"\x1b\[\d*m", "", captured.get()).splitlines()


def test_before_anything_is_known_it_says_that_ranks_start(terminal):
    assert lines_after(terminal) == [f"{'starting rank processes':<75} 0:00"]


def test_it_shows_submission_component_check_and_times(terminal):
    begun = GradeBegan((PLANNED, PLANNED)), SubmissionBegan("examples/" + "long" * 30), ComponentBegan("naive_ddp", 2)
    first, second, third = lines_after(terminal, *begun, CheckBegan("naive_ddp", "gradients_averaged"))
    assert re.fullmatch(r"grading \(1 of 2\) examples/(long)+.* 0:00", first)
    assert "…" in first
    assert {len(first), len(second), len(third)} == {80}
    assert second.rstrip() == "  naive_ddp: check 1 of 2"
    assert re.fullmatch(r"    gradients_averaged +0:00", third)
    ended = CheckEnded("naive_ddp", WRONG), CheckBegan("naive_ddp", "one_rank")
    _, second, third = lines_after(terminal, *begun, CheckBegan("naive_ddp", "gradients_averaged"), *ended)
    assert second.rstrip() == "  naive_ddp: check 2 of 2, 1 failed"
    assert "one_rank" in third


def test_its_lines_are_gone_before_a_report_is_printed(terminal):
    shown = LiveProgress(terminal)
    with shown.live:
        for event in (GradeBegan((PLANNED,)), SubmissionBegan("x"), ComponentBegan("naive_ddp", 2)):
            shown(event)
        shown.live.refresh()
        shown(SubmissionEnded())
        assert not shown.live.is_started
        assert terminal.file.getvalue().endswith(CLEAR_LINE)
        shown(SubmissionBegan("y"))
        assert shown.live.is_started


def test_elsewhere_there_is_a_line_for_each_submitted_component(capsys):
    ended = ComponentEnded(GRADED), ComponentEnded(replace(GRADED, submitted=False))
    for event in (GradeBegan((PLANNED,)), SubmissionBegan("a/b"), *ended, SubmissionEnded()):
        write_lines(event)
    assert capsys.readouterr() == ("", "conformance: grading a/b\nconformance: naive_ddp failed, 2 of 4 points\n")


def test_a_student_is_told_of_a_failure_at_once(capsys, terminal):
    told = "naive_ddp: gradients_averaged failed: "
    events = CheckEnded("naive_ddp", WRONG), ComponentEnded(GRADED)
    for event in events:
        write_lines(event, verdicts=True)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"conformance: {told}")
    assert second == "conformance: naive_ddp failed, 2 of 4 points"
    shown = LiveProgress(terminal, verdicts=True)
    with shown.live:
        for event in events:
            shown(event)
        assert told in terminal.file.getvalue()
        assert "naive_ddp failed, 2 of 4 points" in terminal.file.getvalue()


def on_a_terminal(*arguments, **variables):
    """Run the command with standard error on a terminal of 80 columns; return that, and standard output."""
    reading, writing = pty.openpty()
    command = [sys.executable, "-m", "conformance", "grade", *arguments]
    ours = {"COLUMNS": "80", "TERM": "xterm", **variables}
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writing, text=True, env=os.environ | ours)
    os.close(writing)
    seen = b""
    try:
        while piece := os.read(reading, 4096):
            seen += piece
    except OSError:  # Linux ends what is read from a terminal so, once nobody holds its other end
        pass
    os.close(reading)
    return seen.decode(), started.communicate()[0]


def test_a_terminal_shows_progress_and_leaves_standard_output_alone(tmp_path):
    asked = ["--components", "naive_ddp", "--core", "--max-examples", "1", "--repro-dir", str(tmp_path)]
    shown, report = on_a_terminal(str(EXAMPLE), "--world-size", "2", *asked, NO_COLOR="1")
    assert shown.index("starting rank processes") < shown.index("grading ") < shown.index("naive_ddp: check ")
    assert re.search(r"gradients_averaged +\d:\d\d", shown)
    assert "\x1b[3" not in shown, "no colour"
    assert shown.rstrip().endswith(CLEAR_LINE), "nothing is left of it"
    assert "\x1b" not in report
    assert "naive_ddp: gradients_averaged  failed" in report


def test_a_terminal_shows_something_before_torch_is_imported(tmp_path):
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(1000)\n", encoding="utf-8")
    reading, writing = pty.openpty()
    command = [sys.executable, "-m", "conformance", "grade", str(EXAMPLE)]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ours = {"PYTHONPATH": path, "TERM": "xterm"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=writing, env=os.environ | ours) as started:
        os.close(writing)
        assert os.read(reading, 4096) == b"starting rank processes ...\r"
        started.kill()
    os.close(reading)


@pytest.mark.long
def test_a_dumb_terminal_is_told_no_more_than_a_file(tmp_path):
    shown, _ = on_a_terminal(str(EXAMPLE), "--components", "flat_ddp", "--json", str(tmp_path / "x"), TERM="dumb")
    assert "\x1b" not in shown
    assert "define none of the components asked for" in shown
