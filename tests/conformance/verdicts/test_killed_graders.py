"""Graders of a course are killed while it runs: that costs their submission a retry, and the others nothing."""

import csv
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

RIGHT = """
def ddp_overhead(s, w, o, n_b): return s / w / n_b + n_b * o
def optimal_bucket_size(s, w, o): return (s * w * o) ** 0.5
"""
OPTIONS = ("--core", "--components", "overhead_model", "--max-examples", "2", "--seed", "1", "--jobs", "2")
LOOK_SECONDS = 0.02


def graders(course, name):
    """Return the processes of a course that write to the log of a submission: its graders."""
    with suppress(psutil.NoSuchProcess):
        for process in course.children(recursive=True):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if any(Path(f"/proc/{process.pid}/fd/{fd}").resolve().match(f"{name}/log.txt") for fd in (1, 2)):
                    yield process


def test_a_grader_that_is_killed_costs_its_submission_alone(tmp_path):
    for name in ("ada", "bob", "eve", "kim"):
        (tmp_path / "course" / name).mkdir(parents=True)
        (tmp_path / "course" / name / "adapters.py").write_text(RIGHT, encoding="utf-8")
    command = [sys.executable, "-m", "conformance", "grade", "course", "--out", "out", *OPTIONS]
    killed, parents = set(), set()
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        course = psutil.Process(run.pid)
        while run.poll() is None:
            for grader in graders(course, "bob"):  # it is tried three times
                with suppress(psutil.NoSuchProcess):
                    grader.kill()
                    killed.add(grader.pid)
            for grader in graders(course, "eve") if not parents else ():  # what forks all graders, once
                with suppress(psutil.NoSuchProcess):
                    parent = grader.parent()
                    parent.kill()
                    parents.add(parent.pid)
            with suppress(subprocess.TimeoutExpired):
                run.wait(LOOK_SECONDS)
        said = run.stderr.read()
    assert run.returncode == 0, said
    with (tmp_path / "out" / "gradebook.csv").open(encoding="utf-8") as table:
        found = {row["name"]: row for row in csv.DictReader(table)}
    assert 2 <= len(killed) <= 3, said  # its parent's end may have ended it once
    assert len(parents) == 1
    assert {name: row["points"] for name, row in found.items()} == {"ada": "5", "bob": "0", "eve": "5", "kim": "5"}
    assert "the grader ended 3 times before it was done" in found["bob"]["look at"]
    assert not any(found[name]["look at"] for name in ("ada", "eve", "kim"))
