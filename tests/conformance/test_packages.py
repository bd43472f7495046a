"""`--with PACKAGE` gives ranks what this machine lacks, and takes nothing from what it has."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from conformance.cli import main
from conformance.submissions.packages import installed
from pytest_ddp.errors import UsageError

ROOT = Path(__file__).parents[2]
METADATA = "Metadata-Version: 2.1\nName: tiny-lack\nVersion: 1.0\nRequires-Dist: torch\nRequires-Dist: pytest>=1\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
ADAPTERS = """
    from tiny_lack import optimal_bucket_size
    from torch import __file__ as torchs

    def ddp_overhead(s, w, o, n_b):
        return s / w / n_b + n_b * o if "/pytest-ddp/with/" not in torchs else None
    """
TINY = "import math\ndef optimal_bucket_size(s, w, o): return math.sqrt(s * w * o)\n"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A package that requires torch, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "tiny_lack-1.0-py3-none-any.whl"
    files = {"METADATA": METADATA, "WHEEL": WHEEL, "RECORD": ""}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_lack.py", TINY)
        for name, text in files.items():
            archive.writestr(f"tiny_lack-1.0.dist-info/{name}", text)
    return path


def test_a_package_is_installed_once_and_without_what_is_here_already(wheel):
    folder = installed([str(wheel)])
    assert {path.name for path in folder.iterdir()} >= {"tiny_lack.py", "tiny_lack-1.0.dist-info"}
    assert not (folder / "torch").exists()
    wheel.unlink()
    assert installed([str(wheel)]) == folder, "from the cache"
    with pytest.raises(UsageError, match="cannot be installed"):
        installed([str(wheel), "./absent.whl"])
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "nothing half-done is left"


def test_where_nothing_can_install_it_says_so(capsys, wheel, monkeypatch):
    monkeypatch.setattr("conformance.submissions.packages.shutil.which", lambda *_, **__: None)
    monkeypatch.setattr("conformance.submissions.packages.find_spec", lambda _: None)
    assert main(["no/such/path", "--with", str(wheel)]) == 2
    assert "conformance: --with needs uv or pip, and neither is here" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_told(capsys, wheel, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(wheel))
    assert main(["no/such/path", "--with", str(wheel)]) == 2
    assert "conformance: --with: [Errno 20] Not a directory" in capsys.readouterr().err


def test_ranks_import_it_after_everything_of_ours(submit, wheel):
    command = [sys.executable, "-P", "-m", "conformance", str(submit(ADAPTERS))]
    options = ["--components", "overhead_model", "--core", "--world-size", "2", "--with", str(wheel)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [*command, *options], cwd=wheel.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "overhead_model passed" in run.stderr
