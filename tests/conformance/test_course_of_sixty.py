"""Sixty submissions as a course gets them, killed three times: the same gradebook as without, byte for byte."""

import csv
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import psutil
import pytest
from bug import right
from bugs import BUGS

from pytest_ddp.pool.launcher import EXIT_SECONDS

PARTS = ("overhead_model", "loader_generator", "distributed_sampler")
COMPONENTS = (*PARTS, "naive_ddp", "sharded_optimizer")
OPTIONS = ("--core", "--max-examples", "1", "--world-size", "2", "--seed", "3", "--jobs", "2")
EXPLOITS = [
    exploit
    for path in sorted(Path(__file__).parents[1].glob("exploits/families/[a-z]*.py"))
    for exploit in import_module(f"families.{path.stem}").EXPLOITS
    if exploit.component in COMPONENTS
]
NOT_IMPORTING = ("raise ValueError", "import absent", "def f(:", "import sys\nsys.exit(0)", "import os\nos._exit(0)")
SIXTY = 60
WRONG = [bug for bug in BUGS if bug.component in COMPONENTS]


def submissions() -> Iterator[dict[str, str]]:
    """Yield the files of submissions: right, wrong, exploits, some that do not import, some without adapters."""
    for number in range(5):
        parts = PARTS[: 1 + number % 3]
        yield {"adapters": "\n".join(right(name)["adapters"] for name in parts)}
    yield right("naive_ddp")
    yield from ({"adapters": text} for text in NOT_IMPORTING)
    yield from ({"readme": ""}, {"adapters": ""}, {"adapters": "x = 1"})
    yield from ({"adapters": one.adapters, **one.files} for one in EXPLOITS[:: len(EXPLOITS) // 14])
    yield from (bug.planted() for bug in WRONG[:: len(WRONG) // 40])


def hand_in(folder: Path) -> None:
    """Write sixty submissions; every fifth as an archive, of which three are broken."""
    for number, files in zip(range(SIXTY), submissions(), strict=False):
        place = folder / f"student{number:02}"
        place.mkdir(parents=True)
        for name, text in files.items():
            (place / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
            (place / f"{name}.py").write_text(text, encoding="utf-8")
        if number % 5 == 0:
            shutil.make_archive(str(place), "zip", place)
            shutil.rmtree(place)
    for archive in sorted(folder.glob("*.zip"))[-3:]:
        archive.write_bytes(archive.read_bytes()[:-30])


def command(folder: Path, out: Path) -> list[str]:
    asked = ["grade", str(folder), "--out", str(out), "--components", ",".join(COMPONENTS), *OPTIONS]
    return [sys.executable, "-m", "conformance", *asked, "--resume"]


def kill_when(out: Path, graded: int, run: "subprocess.Popen[bytes]") -> None:
    """Kill everything at once when so many submissions are graded."""
    while len(list(out.glob("*/report.json"))) < graded:
        with pytest.raises(subprocess.TimeoutExpired):
            run.wait(0.2)
    tree = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
    for process in tree:
        with suppress(psutil.NoSuchProcess):  # it ended with the one before
            process.kill()
    run.wait()
    assert not psutil.wait_procs(tree, EXIT_SECONDS)[1]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_three_kills_leave_no_trace_in_the_gradebook(tmp_path):
    hand_in(tmp_path / "course")
    subprocess.run(command(tmp_path / "course", tmp_path / "whole"), check=True)
    for graded in (10, 30, 45):
        with subprocess.Popen(command(tmp_path / "course", tmp_path / "killed")) as run:
            kill_when(tmp_path / "killed", graded, run)
    subprocess.run(command(tmp_path / "course", tmp_path / "killed"), check=True)
    whole = (tmp_path / "whole" / "gradebook.csv").read_text(encoding="utf-8")
    assert (tmp_path / "killed" / "gradebook.csv").read_text(encoding="utf-8") == whole
    assert len(list(csv.DictReader(whole.splitlines()))) == SIXTY
    assert not list((tmp_path / "killed").glob("*/tmp")), "temporary files go, also those of a grader that was killed"
