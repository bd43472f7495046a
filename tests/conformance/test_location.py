"""Where a submission imports from, and where files about it go: one's failure is never taken for another's."""

import json
import os
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from conformance.batch.entries import Entry
from conformance.components.registry import COMPONENTS
from conformance.grading.events import Reports
from conformance.grading.formats.html import to_html
from conformance.grading.grade import Grading, grade
from conformance.reproduction.replay import Replay
from conformance.submissions.location import Location, locate
from pytest_ddp.errors import UsageError

NO_TIME = """
    def ddp_overhead(s, w, o, n_b): return 0.0
    def optimal_bucket_size(s, w, o): return 0.0
    """


def roots(folder: Path) -> list[str]:
    """The folders that the submission in a folder imports from, relative to it."""
    (folder / "adapters.py").touch()
    return [os.path.relpath(root, folder) for root in locate(str(folder)).import_roots]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ('[tool.uv.sources]\nbasics = { path = "./mine", editable = true }', ["mine", "mine/src"]),
        ('[tool.uv.sources]\nbasics = { path = "../beside" }', []),
        ('[tool.uv.sources]\nall = { path = "/" }', []),
        ('[tool.uv.sources]\nlink = { path = "leads_out" }', []),
        ('[tool.uv.sources]\nnone = { path = "a\\u0000b" }', []),
        ('[tool.uv.workspace]\nmembers = ["/etc/*"]', []),
        ('[tool.uv.workspace]\nmembers = ["../*", "leads_out/*"]', []),
        ('[tool.uv.sources]\nbasics = { git = "https://example.org/x" }', []),
        ('[tool.uv.workspace]\nmembers = ["packages/*"]', ["packages/one"]),
        ("[tool.uv]\nsources = 1", []),
        ("no TOML", []),
    ],
)
def test_folders_that_pyproject_gives_to_uv_come_before_others_beside_the_submission(tmp_path, text, first):
    folder = tmp_path / "submission"
    for name in ("handed_out", "mine/src", "packages/one", "../beside"):
        (folder / name).mkdir(parents=True)
    (folder / "handed_out/pyproject.toml").touch()
    (folder / "leads_out").symlink_to("..")
    (folder / "pyproject.toml").write_text(text)
    assert roots(folder) == [".", *first, "handed_out"]


@pytest.mark.parametrize("place", ["cs336-basics", "../cs336-basics"])
def test_the_template_is_found_inside_the_submission_and_beside_it(tmp_path, place):
    folder = tmp_path / "submission"
    folder.mkdir()
    (folder / place / "src").mkdir(parents=True)
    (folder / place / "pyproject.toml").write_text('[project]\nname = "cs336_basics"')
    assert roots(folder) == [".", place, f"{place}/src"]


@pytest.mark.parametrize("text", ["", "no TOML", '[project]\nname = "mine"', "project = 1", "[project]\nname = 1"])
def test_a_folder_beside_the_submission_that_only_has_the_name_of_the_template_is_left_out(tmp_path, text):
    (tmp_path / "submission").mkdir()
    (tmp_path / "cs336-basics").mkdir()
    (tmp_path / "cs336-basics/pyproject.toml").write_text(text)
    assert roots(tmp_path / "submission") == ["."]


def test_no_link_leads_out_of_a_submission(tmp_path):
    """Not by `src`, a subfolder, the template's folder, `pyproject.toml` or the adapters themselves."""
    ada, bob = tmp_path / "ada", tmp_path / "bob"
    for folder in (ada, bob / "src", bob / "tests", tmp_path / "carol"):
        folder.mkdir(parents=True)
    (bob / "pyproject.toml").write_text('[project]\nname = "cs336-basics"\n[tool.uv.sources]\nx = { path = "." }')
    (bob / "tests/adapters.py").write_text(OFFICIAL)
    for link in ("src", "package", "cs336-basics"):
        (ada / link).symlink_to(bob)
    (tmp_path / "cs336-basics").symlink_to(bob)
    (ada / "pyproject.toml").symlink_to(bob / "pyproject.toml")
    assert roots(ada) == ["."]
    (tmp_path / "carol/adapters.py").symlink_to(bob / "tests/adapters.py")
    with pytest.raises(UsageError, match=r"adapters\.py leads out of .*carol"):
        locate(str(tmp_path / "carol"))
    (tmp_path / "carol/adapters.py").rename(tmp_path / "gone")
    (tmp_path / "carol/mine").symlink_to(bob)
    with pytest.raises(UsageError, match=r"no adapters in .*carol"):
        locate(str(tmp_path / "carol"))


def test_links_within_a_submission_are_followed(tmp_path):
    (tmp_path / "lib/package").mkdir(parents=True)
    (tmp_path / "src").symlink_to("lib")
    assert roots(tmp_path) == [".", "lib"]


def test_a_file_is_alone_unless_it_is_the_adapters_of_a_folder(tmp_path):
    (tmp_path / "tests").mkdir()
    for name in ("cy.py", "adapters.py", "tests/adapters.py", "tests/cy.py"):
        (tmp_path / name).touch()
    alone = [name for name in ("cy.py", "adapters.py", "tests/adapters.py", "tests/cy.py")
             if locate(str(tmp_path / name)).is_file_alone]  # fmt: skip
    assert alone == ["cy.py", "tests/cy.py"]
    (tmp_path / "pyproject.toml").touch()
    assert not locate(str(tmp_path / "tests/cy.py")).is_file_alone


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        ('a = { path = "../bob" }\nb = { path = "mine" }\nc = { path = "../cs336-basics" }', ("../bob",)),
        ('c = { path = "../cs336-basics" }', ()),
    ],
)
def test_what_pyproject_names_in_vain_is_kept_for_the_report(tmp_path, text, left_out):
    ada = tmp_path / "ada"
    for name in ("ada/mine", "bob", "cs336-basics"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "cs336-basics/pyproject.toml").write_text('[project]\nname = "cs336-basics"')
    (ada / "adapters.py").touch()
    (ada / "pyproject.toml").write_text(f"[tool.uv.sources]\n{text}")
    found = locate(str(ada))
    assert found.left_out == left_out
    assert all(name in found.not_imported for name in left_out)
    assert Location.from_json(json.loads(json.dumps(asdict(found)))) == found


@pytest.mark.parametrize(
    ("given", "subfolder"),
    [
        ("alice/repo", "alice/repo"),
        ("bob/repo", "bob/repo"),
        ("./bob/../alice/repo/", "alice/repo"),
        ("bob/repo/adapters.py", "bob/repo/adapters.py"),
        ("v1.2", "v1.2"),
        (".", "."),
        ("json.tool", "json.tool"),
    ],
)
def test_files_are_laid_out_as_the_submissions_are(tmp_path, monkeypatch, given, subfolder):
    for folder in ("alice/repo", "bob/repo", "v1.2", "."):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "adapters.py").touch()
    monkeypatch.chdir(tmp_path)
    assert locate(given).subfolder == Path(subfolder)


def test_what_lies_elsewhere_keeps_its_whole_path(tmp_path, monkeypatch):
    elsewhere, here = tmp_path / "elsewhere", tmp_path / "here"
    for folder in (elsewhere, here):
        folder.mkdir()
        (folder / "adapters.py").touch()
    monkeypatch.chdir(here)
    for given in (str(elsewhere), "../elsewhere"):
        assert locate(given).subfolder == elsewhere.relative_to("/")


def test_submissions_of_one_name_have_scripts_of_their_own(grade_path, tmp_path, monkeypatch, submit):
    monkeypatch.chdir(tmp_path)
    scripts = []
    for name in ("alice", "bob"):
        folder = Path(name, "repo")
        folder.parent.mkdir()
        submit(NO_TIME).rename(folder)
        report = grade_path(folder, components=["overhead_model"], examples=1, world_size=2, core=True)
        scripts.append(next(Path(check.script) for check in report.components[0].checks if check.script))
    alices, bobs = scripts
    assert alices != bobs
    assert str(tmp_path / "alice/repo") in alices.read_text()
    assert str(tmp_path / "bob/repo") in bobs.read_text()
    compile(bobs.read_text(), bobs, "exec")
    assert "sys.path[:0] = [&#39;.&#39;]\nimport adapters\n" in to_html([report], here=False)


def test_where_scripts_cannot_be_written_the_verdict_stands(grade_path, tmp_path, submit):
    (tmp_path / "repro").touch()
    report = grade_path(submit(NO_TIME), components=["overhead_model"], examples=1, world_size=2, core=True)
    failed = [check for check in report.components[0].checks if check.status == "failed"]
    assert failed
    assert all("repro" in check.without_script and not check.script for check in failed)


def test_a_case_of_another_machine_is_tried_in_the_current_folder(tmp_path, monkeypatch):
    check = COMPONENTS["overhead_model"].checks[0]
    (tmp_path / "adapters.py").touch()
    monkeypatch.chdir(tmp_path)
    with Replay("/elsewhere/adapters.py", "overhead_model", check, None, "1").located() as location:
        assert location.root == str(tmp_path)


def test_a_module_in_the_working_directory_is_found_though_python_does_not_look_there(tmp_path, monkeypatch):
    (tmp_path / "my_adapters_of_today.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in sys.path if path])
    assert locate("my_adapters_of_today.sub").import_roots == (str(tmp_path),)
    assert locate("reference.adapters").import_roots == ()


OFFICIAL = "def get_ddp_individual_parameters(module): ..."


def test_a_submission_in_the_official_layout_is_found_below_the_folder(tmp_path):
    texts = {"one/basics": "def run_linear(): ...", "two/systems": OFFICIAL}
    for name, text in texts.items():
        (tmp_path / name / "tests").mkdir(parents=True)
        (tmp_path / name / "tests/adapters.py").write_text(text)
    found = locate(str(tmp_path))
    assert (found.given, found.root) == (str(tmp_path), str(tmp_path / "two/systems"))
    (tmp_path / "one/basics/tests/adapters.py").write_text(OFFICIAL)
    with pytest.raises(UsageError, match=f"is there; give one of {tmp_path}/one/basics, {tmp_path}/two/systems"):
        locate(str(tmp_path))


@pytest.mark.parametrize(
    ("files", "root"),
    [
        (["hw/adapters.py", "hw/ddp.py", ".DS_Store", "__MACOSX/x"], "hw"),
        (["out/a1/hw/adapters.py"], "out/a1/hw"),
        (["hw/tests/adapters.py"], "hw"),
        (["tests/adapters.py"], "."),
        (["_hw/adapters.py", ".git/x"], "_hw"),
    ],
)
def test_a_submission_may_lie_in_folders_that_hold_nothing_else(tmp_path, files, root):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert locate(str(tmp_path)).root == str(tmp_path / root)


def test_the_folder_of_tests_is_not_the_submission(tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    for name in ("tests/adapters.py", "pyproject.toml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path / "tests")
    found = locate(".")
    assert (found.root, found.module) == (str(tmp_path), "tests.adapters")


def test_what_cannot_be_looked_at_is_told_without_a_traceback(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="cannot be read: File name too long"):
        locate("x" * 300)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match=r"\. cannot be read: it was deleted: change to it again"):
        locate(".")


def test_the_official_layout_imports_the_package_of_another_assignment(tmp_path):
    """As in the handout: `cs336-basics/` with a pyproject.toml beside `cs336_systems/`, with and without `src`."""
    for name in ("cs336-basics/cs336_basics", "cs336-extra/src/extra", "cs336_systems", "tests"):
        (tmp_path / name).mkdir(parents=True)
    for folder in ("cs336-basics", "cs336-extra", "."):
        (tmp_path / folder / "pyproject.toml").write_text(
            '[tool.uv.sources]\ncs336-basics = { path = "./cs336-basics", editable = true }'
        )
    assert roots(tmp_path) == [".", "cs336-basics", "cs336-extra", "cs336-extra/src"]


OFFICIAL_LAYOUTS = {  # by year: where the adapters are, and where packages of the student are
    2024: ("cs336-systems/tests/adapters.py", ("cs336-systems/cs336_systems", "cs336-basics/cs336_basics")),
    2025: ("tests/adapters.py", ("cs336_systems", "cs336-basics/cs336_basics")),
    2026: ("tests/adapters.py", ("cs336_systems", "cs336-basics/cs336_basics")),
}
ADAPTERS = {2024: OFFICIAL, 2025: OFFICIAL, 2026: "def get_ddp(module): ...\ndef get_fsdp(module): ..."}


@pytest.mark.parametrize("year", OFFICIAL_LAYOUTS)
@pytest.mark.parametrize("as_archive", [False, True], ids=["folder", "archive"])
def test_the_official_layouts_are_found_with_the_packages_that_they_import(tmp_path, year, as_archive):
    adapters, packages = OFFICIAL_LAYOUTS[year]
    for package in packages:
        (tmp_path / "ada" / package).mkdir(parents=True)
        (tmp_path / "ada" / package / "__init__.py").touch()
        name = Path(package).parts[0]
        (tmp_path / "ada" / name / "pyproject.toml").write_text(f'[project]\nname = "{name}"')
    (tmp_path / "ada" / adapters).parent.mkdir(parents=True)
    (tmp_path / "ada" / adapters).write_text(ADAPTERS[year])
    entry = Entry("ada", tmp_path / "ada")
    if as_archive:  # as the course's script makes it: everything is at the top of the archive
        entry = Entry("ada", Path(shutil.make_archive(str(tmp_path / "upload" / "ada"), "zip", tmp_path / "ada")))
        entry = replace(entry, path=entry.path.parent)  # as a course system exports it
    found = locate(str(entry.folder(tmp_path / "unpacked")))
    assert found.module == "tests.adapters"
    assert all(any(Path(root, Path(package).name).is_dir() for root in found.import_roots) for package in packages)


def test_the_report_says_why_what_pyproject_names_outside_is_not_imported(launcher, tmp_path):
    for name in ("ada", "bob"):
        (tmp_path / name).mkdir()
    (tmp_path / "bob/bobs_own.py").touch()
    (tmp_path / "ada/adapters.py").write_text("import bobs_own")
    (tmp_path / "ada/pyproject.toml").write_text('[tool.uv.sources]\nx = { path = "../bob" }')
    (report,) = Reports.of(grade([str(tmp_path / "ada")], Grading(1, 2, ("overhead_model",), 1), launcher))
    assert "No module named 'bobs_own'" in report.not_graded_because
    assert "names ../bob, which is not in the submission" in report.not_graded_because
