"""Finds what this machine lacks, from an exception of the submission: such a lack is never the submission's fault."""

import os
import platform
import re
import sys
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from conformance.ranks import stand_ins
from conformance.ranks.loading import is_own
from conformance.submissions.location import Location

_NEWER_SYNTAX = re.compile(r"\s*(type\s+\w|(async\s+)?(def|class)\s+\w+\[)")  # of Python 3.12
_CHECKPOINT = "checkpoint.pt"  # the name that the judge gives
_TEMPORARY = (tempfile.gettempdir(), "/dev/shm")  # noqa: S108  what is missing there, the submission has not written


def lacking(error: BaseException, location: Location) -> str:
    """Return what this machine lacks and how to provide it, in a sentence; empty if the error has another cause."""
    with suppress(BaseException):  # the submission may have made the error, and what it consists of
        return _lacking(error, location)
    return ""


def _lacking(error: BaseException, location: Location) -> str:
    newer = _newer_python_asked_for(location)
    match error:
        case ImportError(name=str(name)):
            return _not_importable(error, name.partition(".")[0], location)
        case SyntaxError(text=str(line)) if newer or _NEWER_SYNTAX.match(line):
            return _newer_python(error, newer)
        case AttributeError(obj=ModuleType(__name__=name)) if newer and name in sys.stdlib_module_names:
            return _newer_python(error, newer)
        case FileNotFoundError(filename=str(name)) if _is_data(name, location):
            return f"This machine lacks {name}, which the submission looks for: put it at {os.path.abspath(name)}."  # noqa: PTH100  a `Path` might be the submission's
    if stand_ins.AbsentPackage.__name__ in str(error):
        return _packages("The submission computes with", sorted(stand_ins.packages.allowed))
    return ""


def _is_data(name: str, location: Location) -> bool:
    """Whether a missing file is data of the submission; it writes a checkpoint and temporary files itself."""
    if os.path.basename(name).startswith(_CHECKPOINT):  # noqa: PTH119  a `Path` might be the submission's
        return False
    return is_own(name, location) or not name.startswith(_TEMPORARY)


def _not_importable(error: ImportError, package: str, location: Location) -> str:
    if package in sys.stdlib_module_names:
        return _newer_python(error, _newer_python_asked_for(location))
    own = any(Path(root, place).exists() for root in location.import_roots for place in (package, f"{package}.py"))
    if isinstance(error, ModuleNotFoundError) and not own and package != location.module.partition(".")[0]:
        return _packages("The submission imports", [package])
    return ""


def _packages(used: str, names: list[str]) -> str:
    install = " ".join(f"--with {name}" for name in names)
    return f"{used} {' and '.join(names)}, which this machine lacks: if that is its name, grade it with `{install}`."


def _newer_python(error: Exception, asked_for: str) -> str:
    asks = f"The submission asks for Python {asked_for}" if asked_for else "Another version of Python has it"
    return f"{error}. {asks}, and this machine has {platform.python_version()}: grade it with another Python."


def _newer_python_asked_for(location: Location) -> str:
    """Return what pyproject.toml requires of Python, if this one is too old for it."""
    with suppress(OSError, ValueError, LookupError, TypeError):  # no such file, no TOML, or of another shape
        text = Path(location.root or "", "pyproject.toml").read_text(encoding="utf-8")
        required = str(tomllib.loads(text)["project"]["requires-python"])
        if any(int(minor) > sys.version_info.minor for minor in re.findall(r"[>=~]=\s*3\.(\d+)", required)):
            return required
    return ""
