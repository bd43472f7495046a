"""`--watch`: a saved file is graded again, what failed first; Ctrl-C ends it, and no process is left."""

import io
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from conformance.cli import main
from conformance.commands import watch
from conformance.commands.watch import Saves, Watch, folders
from conformance.grading.events import (
    CheckEnded,
    ComponentBegan,
    ComponentEnded,
    GradeBegan,
    SubmissionBegan,
    SubmissionEnded,
)
from conformance.grading.grade import Grading
from conformance.grading.report import CheckReport, ComponentReport, Environment, Report

ROOT = Path(__file__).parents[2]
SECONDS = 120  # the longest that anything is waited for
RIGHT = "    return s / (n_b * w) + n_b * o\n"
OPTIMUM = "def optimal_bucket_size(s, w, o):\n    return (s * w * o) ** 0.5\n"
ADAPTERS = f"def ddp_overhead(s, w, o, n_b):\n{RIGHT}{OPTIMUM}"
PASSED = CheckReport("a_check", "core", "passed", "It holds.")
FAILED = replace(PASSED, status="failed", message="It does not hold.")
NAMES = ("flat_ddp", "ddp", "fsdp")


def planned(names):
    parts = tuple(ComponentReport(name, (replace(PASSED, status="not_run"),), graded=False) for name in names)
    return Report(".", Environment("2.15", "3.11", "gloo", "cpu", 2, 336, core_only=True), parts, finished=False)


def grade_of(outcomes, graded, after=lambda _: None):
    """Return a grade in which each component has one check; note the order, and call a function after each check."""

    def grade(grading):
        yield GradeBegan((planned(grading.components),))
        yield SubmissionBegan(".")
        for name in grading.components:
            graded.append(name)
            yield ComponentBegan(name, 1)
            after(name)
            yield CheckEnded(name, outcomes[name])
            yield ComponentEnded(ComponentReport(name, (outcomes[name],)))
        yield SubmissionEnded()

    return grade


def test_what_failed_is_graded_first_and_the_others_keep_their_verdict():
    written, graded, saves = io.StringIO(), [], set()
    watch = Watch(Grading(336, 2, NAMES, 1), Console(file=written, width=80))
    watch.follow(grade_of(dict.fromkeys(NAMES, PASSED) | {"ddp": FAILED}, graded), saves)
    assert graded == list(NAMES)
    assert "Save a file to grade again; Ctrl-C ends." in written.getvalue()
    written.truncate(0)
    stop = saves.add
    watch.follow(grade_of(dict.fromkeys(NAMES, PASSED), graded, stop), saves)
    assert graded[len(NAMES) :] == ["ddp"], "it stops where a file is saved"
    screen = written.getvalue().partition("again; this is the last grade")[0]
    assert "Next: ddp: a_check failed" in screen
    assert "flat_ddp   passed" in screen


def test_folders_of_environments_and_of_scripts_are_not_watched(tmp_path):
    for folder in ("pkg/inner", "repro", ".venv/lib", "env/lib", "pkg/__pycache__"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "module.py").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "env/pyvenv.cfg").touch()
    watched = {str(folder.relative_to(tmp_path)) for folder in folders(tmp_path, tmp_path / "repro")}
    assert watched == {".", "pkg/inner"}


def test_python_files_that_are_saved_are_noticed_also_in_new_folders(tmp_path):
    with Saves([tmp_path], tmp_path / "repro") as saves:
        assert not saves
        (tmp_path / "later").mkdir()
        (tmp_path / "later/second.py").touch()
        (tmp_path / "first.py").write_text("x", encoding="utf-8")
        saves.wait()
        (tmp_path / "later/second.py").write_text("x", encoding="utf-8")
        saves.wait()


def test_a_folder_that_is_removed_and_made_again_is_still_watched(tmp_path):
    module = tmp_path / "pkg/module.py"
    (tmp_path / "pkg").mkdir()
    module.touch()
    with Saves([tmp_path], tmp_path / "repro") as saves:
        shutil.rmtree(tmp_path / "pkg")
        assert saves.wait(SECONDS), "it is removed"
        (tmp_path / "pkg").mkdir()
        module.touch()
        assert saves.wait(SECONDS), "it is there again"
        time.sleep(1)  # events of the same change
        while saves:
            saves.wait(SECONDS)
        module.write_text("x", encoding="utf-8")
        assert saves.wait(SECONDS)


def test_a_folder_that_vanishes_while_it_is_looked_at_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "folders", lambda root, _: [root, root / "gone"])
    with Saves([tmp_path], tmp_path / "repro") as saves:
        saves._look_again()
        (tmp_path / "first.py").touch()
        assert saves.wait(SECONDS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["another/folder"], "--watch grades the current folder: change to the submission's folder"),
        (["--html", "x.html"], "--html: --watch writes no file; grade without it"),
    ],
)
def test_misuse_is_told(capsys, arguments, words):
    assert main(["--watch", *arguments]) == 2
    assert words in capsys.readouterr().err


class Watched:
    """A real `pytest-ddp-grade --watch`, whose output is read as it comes."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-P", "-m", "conformance", "--watch", "--world-size", "2", "--max-examples", "1"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(command, cwd=folder, env=environment, text=True, **pipes)
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def end(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self._reader.join()
        self.process.stdout.close()
        self.process.wait()

    def until(self, words: str) -> str:
        """Return what is written up to a line with these words."""
        read = ""
        while words not in read:
            line = self._lines.get(timeout=SECONDS)
            assert line, f"it ended without {words!r}: {read}"
            read += line
        return read


@pytest.fixture
def watched(submit):
    folder = submit(ADAPTERS.replace(RIGHT, "    return 0.0\n"))
    running = Watched(folder)
    yield running, folder / "adapters.py"
    running.end()


def test_a_saved_file_is_graded_again_until_ctrl_c(watched):
    running, adapters = watched
    first = running.until("Ctrl-C ends")
    assert "Next: overhead_model: overhead_after_backward failed" in first
    adapters.write_text(ADAPTERS, encoding="utf-8")
    assert "Every check that gives points passes." in running.until("Ctrl-C ends").rpartition("this is the last")[2]
    adapters.write_text("def broken(:", encoding="utf-8")
    assert "Next: mend the adapters" in running.until("SyntaxError")
    children = psutil.Process(running.process.pid).children(recursive=True)
    assert children
    running.until("Ctrl-C ends")
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(SECONDS) == 0
    _, alive = psutil.wait_procs(children, SECONDS)
    assert not alive
