"""Where files about a submission go: what shows the failure of one is never taken for another's."""

from pathlib import Path

import pytest

from conformance.submissions.location import locate

NOTHING = """
    def get_naive_ddp(module):
        return module
    def naive_ddp_on_after_backward(ddp_model, optimizer): ...
    """


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
        submit(NOTHING).rename(folder)
        report = grade_path(folder, components=["naive_ddp"], examples=1, world_size=2, core=True)
        scripts.append(next(Path(check.repro) for check in report.components[0].checks if check.repro))
    alices, bobs = scripts
    assert alices != bobs
    assert str(tmp_path / "alice/repo") in alices.read_text()
    assert str(tmp_path / "bob/repo") in bobs.read_text()
