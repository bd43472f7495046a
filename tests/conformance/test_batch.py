"""A whole course: submissions are found, graded in process trees of their own, and never graded twice."""

import csv
import errno
import io
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import psutil
import pytest

from conformance.batch.entries import Entry, entries, left_out
from conformance.batch.folders import remove_tree
from conformance.batch.results import Results
from conformance.cli import main
from conformance.commands.course import naming_faults_of, say_left_out
from conformance.submissions.location import locate
from pytest_ddp.errors import UsageError
from pytest_ddp.pool.launcher import EXIT_SECONDS

RIGHT = """
def ddp_overhead(s, w, o, n_b): return s / w / n_b + n_b * o
def optimal_bucket_size(s, w, o): return (s * w * o) ** 0.5
"""
WRONG = RIGHT.replace("n_b * o", "o")
EXITS = "import os\nos._exit(0)\n"


@pytest.fixture
def course(tmp_path):
    """A folder with five submissions: right, wrong, one that exits, an archive, and what is no archive."""
    for name, text in {"ada": RIGHT, "bob": WRONG, "eve": EXITS}.items():
        (tmp_path / "course" / name).mkdir(parents=True)
        (tmp_path / "course" / name / "adapters.py").write_text(text, encoding="utf-8")
    with zipfile.ZipFile(tmp_path / "course" / "dan.zip", "w") as archive:
        archive.writestr("dan/adapters.py", RIGHT)
    (tmp_path / "course" / "fay.zip").write_text("no archive", encoding="utf-8")
    return tmp_path / "course"


@pytest.fixture
def ada_alone(course):
    """The course with one submission, which is right."""
    for path in course.iterdir():
        if path.name != "ada":
            path.unlink() if path.is_file() else shutil.rmtree(path)
    return course


def command(course, *options):
    return ["grade", str(course), "--out", str(course.parent / "out"), "--seed", "1", "--core", *options]


def rows(course):
    text = (course.parent / "out" / "gradebook.csv").read_text(encoding="utf-8")
    return {row["name"]: row for row in csv.DictReader(io.StringIO(text))}


ASKED = ("--components", "overhead_model", "--max-examples", "2", "--jobs", "2")


def test_a_course_is_graded_once_and_its_gradebook_names_what_to_look_at(course, capsys, tmp_path):
    assert main(command(course, *ASKED)) == 0
    found = rows(course)
    assert [found[name]["overhead_model"] for name in ("ada", "bob", "dan")] == ["5", "1.5", "5"]
    assert "os._exit(0) ends the process" in found["eve"]["look at"]
    assert found["fay"]["look at"] == "fay.zip cannot be unpacked: File is not a zip file"
    shown = capsys.readouterr()
    assert "of 5: bob: 1.5 of 5 points; " in shown.err
    assert "5 submissions, 2 of them for a person to look at\n" in shown.out
    out = course.parent / "out"
    assert "Similar failures" in (out / "class.html").read_text(encoding="utf-8")
    assert (
        json.loads((out / "ada" / "report.json").read_text(encoding="utf-8"))["submissions"][0]["submission"] == "ada"
    )
    before = (out / "gradebook.csv").read_bytes()
    parts = {path: path.stat().st_mtime_ns for path in out.glob("*/part-*.json")}
    assert main(command(course, *ASKED)) == 2
    assert "add --resume to go on with them" in capsys.readouterr().err
    assert main(command(course, *ASKED, "--resume")) == 0
    assert "5 of 5 submissions are graded already" in capsys.readouterr().err
    assert (out / "gradebook.csv").read_bytes() == before
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/part-*.json")} == parts, "nothing ran again"
    (tmp_path / "rubric.toml").write_text('[overhead_model.aspects]\n"best bucket size" = {points = 6.5}\n')
    assert main(["regrade", str(out), "--rubric", str(tmp_path / "rubric.toml")]) == 0
    assert rows(course)["ada"]["overhead_model"] == "10"
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/part-*.json")} == parts, "points need no run"
    assert main(["regrade", str(out), "--rubric", str(tmp_path / "rubric.toml"), "--html", "x.html"]) == 2
    assert "--html is for one report" in capsys.readouterr().err
    assert main(["grade", str(course), "--out", str(out), "--seed", "2", "--core", *ASKED, "--resume"]) == 2
    assert "the seed was '1' and is '2'. Nothing was changed" in capsys.readouterr().err


@pytest.mark.long
def test_after_a_kill_the_gradebook_is_the_same(course):
    assert main(command(course, *ASKED)) == 0
    out = course.parent / "out"
    whole = (out / "gradebook.csv").read_bytes()
    out.rename(course.parent / "whole")
    for seconds in (2, 6, 10):  # any moment will do: what was graded by then is kept
        run = subprocess.Popen(
            [sys.executable, "-m", "conformance", *command(course, *ASKED, "--resume")],
            stderr=subprocess.PIPE,
        )
        time.sleep(seconds)
        tree = psutil.Process(run.pid).children(recursive=True)
        run.kill()
        run.communicate()
        assert not psutil.wait_procs(tree, EXIT_SECONDS)[1], "what it started ends with it"
    assert main(command(course, *ASKED, "--resume")) == 0
    assert (out / "gradebook.csv").read_bytes() == whole


def test_components_that_are_asked_for_later_are_added_and_the_rubric_is_kept(ada_alone, capsys, tmp_path):
    (tmp_path / "rubric.toml").write_text('[overhead_model.aspects]\n"best bucket size" = {points = 6.5}\n')
    assert main(command(ada_alone, *ASKED[2:], "--rubric", str(tmp_path / "rubric.toml"))) == 0
    (tmp_path / "rubric.toml").unlink()
    capsys.readouterr()
    assert main(command(ada_alone, *ASKED[2:], "--components", "loader_generator", "--resume")) == 0
    assert f"points are those of {ada_alone.parent / 'out' / 'rubric.toml'}" in capsys.readouterr().err
    assert [rows(ada_alone)["ada"][name] for name in ("overhead_model", "loader_generator")] == ["10", "0"]


def test_a_roster_gives_names(course):
    (course / "roster.csv").write_text("name,path\nAda L.,ada\nNobody,absent\n", encoding="utf-8")
    found = entries(course, course / "roster.csv")
    assert [(one.name, one.path.name) for one in found] == [("Ada L.", "ada"), ("Nobody", "absent")]
    with pytest.raises(UsageError, match="absent is not there"):
        found[1].folder(course / "place")
    (course / "bea.rar").touch()
    with pytest.raises(UsageError, match=r"bea\.rar is neither a folder nor a \.zip, \.tar, .* or \.py file"):
        Entry("bea", course / "bea.rar").folder(course / "place")


def test_nothing_beside_a_file_belongs_to_it(course):
    (course / "adapters.py").write_text("A = 1\n", encoding="utf-8")
    found = locate(str(Entry("adapters", course / "adapters.py").folder(course / "place")))
    assert found.root == str(course / "place")
    assert [path.name for path in Path(found.root).iterdir()] == ["adapters.py"]


def test_the_digest_is_that_of_the_content(course):
    ada, bob = Entry("ada", course / "ada"), Entry("x", course / "bob")
    assert ada.digest() != bob.digest()
    (course / "bob" / "adapters.py").write_text(RIGHT, encoding="utf-8")
    (course / "bob" / "__pycache__").mkdir()
    (course / "bob" / "__pycache__" / "x.pyc").touch()
    assert ada.digest() == bob.digest()


@pytest.mark.parametrize(
    ("roster", "said"),
    [
        ("name,path\nada,\n", "roster.csv:2: a roster has a name and a path in each row; seen: 'ada' and ''"),
        ("name,path\nada,x\0y\n", "roster.csv:2: a roster has a name and a path in each row"),
        ("name,path\na,b\na,c\n", "two submissions have one name\n  a: .*/b and .*/c\n  Remove one of the two"),
        ("name;path\na;b\n", "roster.csv: a roster has a column `name` and .* its first line is 'name;path'"),
        ("name,path,name\na,b,c\n", "a column `name` and a column `path`"),
        ("name,path\n", "roster.csv names no submissions"),
        ("", "its first line is ''"),
    ],
)
def test_a_mistake_in_a_roster_is_named(course, roster, said):
    (course / "roster.csv").write_text(roster, encoding="utf-8")
    with pytest.raises(UsageError, match=said):
        entries(course, course / "roster.csv")


def test_what_is_no_submission_is_named(course):
    for name in ("bea.rar", "notes.txt", ".hidden", "_old"):
        (course / name).touch()
    (course / "out").mkdir()
    assert left_out(course, entries(course, None, course / "out"), (course / "out", None)) == ["bea.rar", "notes.txt"]
    (course / "roster.csv").write_text("Name , path\nAda, ./ada\n\nBob,bob \n", encoding="utf-8")
    listed = entries(course, course / "roster.csv")
    assert [one.name for one in listed] == ["Ada", "Bob"]
    others = left_out(course, listed, (course / "out", course / "roster.csv"))
    assert others == ["bea.rar", "dan.zip", "eve", "fay.zip", "notes.txt"]


def test_whoever_is_not_in_the_roster_is_named_at_the_beginning_and_at_the_end(course, capsys, monkeypatch):
    monkeypatch.setattr("conformance.commands.course._grade_found", lambda *_: None)
    (course.parent / "roster.csv").write_text("name,path\nabsent,absent\n", encoding="utf-8")
    assert main(command(course, *ASKED, "--roster", str(course.parent / "roster.csv"), "--executor", "ray")) == 0
    said = capsys.readouterr().err
    assert said.count("left out, and not in the gradebook, since not in ") == 2
    assert said.rstrip().endswith("roster.csv: ada, bob, dan.zip, eve, fay.zip")


def test_results_never_lie_in_a_submission(course):
    with pytest.raises(UsageError, match=r"out lies in a submission, .*/ada: results would change it"):
        entries(course, None, course / "ada" / "out")


def test_the_digest_of_a_folder_is_quick_whatever_is_in_it(tmp_path):
    (tmp_path / "endless").symlink_to("/proc/self/pagemap")
    nothing = Entry("ada", tmp_path).digest()
    (tmp_path / "endless").unlink()
    (tmp_path / "itself").symlink_to("itself")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        Entry("ada", tmp_path).digest()
    (tmp_path / "itself").unlink()
    assert Entry("ada", tmp_path).digest() == nothing
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UsageError, match="has more than 100000 files and folders or 2560 MiB"):
        Entry("ada", tmp_path).digest()


@pytest.mark.parametrize("folder", [Path("cs336-basics"), Path("another")])
def test_the_package_that_submissions_import_is_none(tmp_path, folder, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (folder, Path("ada")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pyproject.toml").write_text('[project]\nname = "cs336-basics"', encoding="utf-8")
    found = [one.name for one in entries(Path())]
    assert found == (["ada"] if folder.name == "cs336-basics" else ["ada", "another"])
    say_left_out(left_out(Path(), entries(Path()), ()), Path(), None)
    said = "conformance: cs336-basics is no submission: those beside it import this package\n"
    assert capsys.readouterr().err == (said if folder.name == "cs336-basics" else "")


def test_a_folder_that_cannot_be_written_is_the_users_matter(tmp_path):
    (tmp_path / "out").touch()
    results = Results(tmp_path / "out", (), ())
    there = pytest.raises(UsageError, match="out cannot be written: File exists; put that right")
    with there, naming_faults_of(results.out), results.alone():
        pass
    full = pytest.raises(UsageError, match="out cannot be written: No space left on device; put that right, and repeat")
    with full, naming_faults_of(results.out):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(FileNotFoundError), naming_faults_of(results.out):
        (tmp_path / "elsewhere").read_bytes()


def test_a_course_needs_one_folder_and_a_seed(tmp_path, capsys):
    assert main(["grade", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "--out: give --seed" in capsys.readouterr().err
    assert main(["grade", "a", "b", "--out", str(tmp_path / "out"), "--seed", "1"]) == 2
    assert "--out: give one folder" in capsys.readouterr().err
    assert main(["grade", str(tmp_path / "none"), "--out", str(tmp_path / "out"), "--seed", "1"]) == 2
    assert "none is not a folder of submissions" in capsys.readouterr().err
    for ignored, said in (
        (["--watch"], "--watch grades the current folder, and --out a course"),
        (["--repro-dir", "x"], "--repro-dir is for one grade"),
    ):
        assert main(["grade", str(tmp_path), "--out", str(tmp_path / "out"), "--seed", "1", *ignored]) == 2
        assert said in capsys.readouterr().err
    assert Path(tmp_path / "out").exists() is False


@pytest.mark.parametrize(
    "given",
    [["--jobs", "2"], ["--limit", "9"], ["--roster", "x"], ["--resume"], ["--executor", "ray"], ["--ray-address", "x"]],
    ids=lambda given: given[0],
)
def test_an_option_of_a_course_is_refused_without_one(given, capsys):
    assert main(["grade", ".", *given]) == 2
    assert f"{given[0]} is for a course: give --out too" in capsys.readouterr().err


@pytest.mark.long
def test_components_that_are_asked_for_later_are_graded_then(ada_alone):
    asked = ("--max-examples", "2", "--components")
    assert main(command(ada_alone, *asked, "loader_generator")) == 0
    part = ada_alone.parent / "out" / "ada" / "part-001.json"
    before = part.stat().st_mtime_ns
    assert main(command(ada_alone, *asked, "loader_generator,overhead_model", "--resume")) == 0
    assert rows(ada_alone)["ada"]["overhead_model"] == "5"
    assert part.stat().st_mtime_ns == before, "what is graded stays"


def nested(folder, levels=1500):
    """Make folders in one another, more than Python can recurse into."""
    folder.mkdir()
    at = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("a", dir_fd=at)
        inner = os.open("a", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)


@pytest.mark.parametrize("levels", [200, 3000])
def test_a_tree_is_removed_however_deep_it_is(tmp_path, levels):
    nested(tmp_path / "tree", levels)
    remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_a_name_never_leaves_the_folder_of_results(course):
    (course / "roster.csv").write_text("name,path\n..,ada\n../x,bob\n", encoding="utf-8")
    assert [one.name for one in entries(course, course / "roster.csv")] == ["_", "_x"]
    (course / "roster.csv").write_text('name,path\n"O\'Brien, Pat",ada\n', encoding="utf-8")
    assert [one.name for one in entries(course, course / "roster.csv")] == ["O'Brien, Pat"]
    names = {
        "ada+ta@uni.edu": 0,
        "Mu\u0308ller": "M\u00fcller",
        "\u0939\u093f": 0,
        "\U0001f600 x": 0,
        "a\u202eb": "a_b",
    }
    names |= {"<b>|x\x1b[2K": "_b__x_[2K", "course.json": "course.json_"}
    for name, kept in names.items():
        (course / "roster.csv").write_text(f'name,path\n"{name}",ada\n', encoding="utf-8")
        assert [one.name for one in entries(course, course / "roster.csv")] == [kept or name]
    (course / "roster.csv").write_bytes(b"name,path\nJos\xe9,ada\n")
    with pytest.raises(UsageError, match=r"roster\.csv is no CSV file in UTF-8"):
        entries(course, course / "roster.csv")


@pytest.mark.long
def test_components_that_were_left_when_a_grade_was_cut_off_may_not_be_submitted(ada_alone):
    asked = ("--max-examples", "2", "--jobs", "2", "--components", "overhead_model,loader_generator")
    assert main(command(ada_alone, *asked)) == 0
    whole = (ada_alone.parent / "out" / "gradebook.csv").read_bytes()
    path = ada_alone.parent / "out" / "ada" / "part-001.json"
    part = json.loads(path.read_text(encoding="utf-8"))
    part["submissions"][0]["finished"] = False
    part["submissions"][0]["components"]["loader_generator"]["status"] = "not_graded"
    path.write_text(json.dumps(part), encoding="utf-8")
    assert main(command(ada_alone, *asked, "--resume")) == 0
    assert (path.parent / "part-002.json").exists()
    assert (ada_alone.parent / "out" / "gradebook.csv").read_bytes() == whole
