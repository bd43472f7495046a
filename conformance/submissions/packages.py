"""Installs packages that submissions need and this machine lacks: what `--with PACKAGE` asks for."""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

from pytest_ddp.errors import UsageError

_LINES = 10  # of what the installer says


def installed(packages: Sequence[str]) -> Path:
    """Return a folder with packages and what they require; install them there, unless an earlier grade has.

    What is installed beside this grader is left out: it comes first on the path, and above all torch is large.

    Raises:
        UsageError: they cannot be installed.
    """
    ours = sorted({distribution.name for distribution in distributions()})
    key = repr((sorted(packages), ours, sys.version_info[:2], sysconfig.get_platform()))
    folder = _cache() / hashlib.sha256(key.encode()).hexdigest()[:16]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
                found = _install(packages, ours, Path(temporary))
                with suppress(OSError):  # another grade was faster
                    found.rename(folder)
    except OSError as error:
        raise UsageError(f"--with: {error}") from None
    return folder


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "pytest-ddp", "with")


def _install(packages: Sequence[str], ours: Iterable[str], temporary: Path) -> Path:
    """Install packages in a new folder below one for temporary files, from where no configuration is read."""
    target = temporary / "packages"
    target.mkdir()
    left_out = temporary / "left_out.txt"
    left_out.write_text("".join(f'{name}; python_version < "0"\n' for name in ours), encoding="utf-8")
    command = [*_installer(left_out), "--quiet", "--target", str(target), *packages]
    run = subprocess.run(command, capture_output=True, text=True, cwd=temporary, check=False)
    if run.returncode:
        said = "\n".join(run.stderr.strip().splitlines()[-_LINES:])
        raise UsageError(f"--with: {' and '.join(packages)} cannot be installed:\n{said}")
    return target


def _installer(left_out: Path) -> list[str]:
    """Return the command of uv, or of pip, which knows no way to leave packages out."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    if uv := shutil.which("uv", path=beside):
        return [uv, "pip", "install", "--python", sys.executable, "--override", str(left_out)]
    if find_spec("pip"):
        return [sys.executable, "-P", "-m", "pip", "install", "--disable-pip-version-check"]
    raise UsageError("--with needs uv or pip, and neither is here: install uv (`python3 -m pip install uv`)")
