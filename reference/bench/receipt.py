"""The receipt of a report: hashes of the code, the versions, the raw numbers and everything that was made of them.

The receipt shows mistakes and careless edits: a number that was changed in a table, a picture of another run, a report
that other code made. It is no signature: whoever changes the raw numbers can make a new receipt for them.
"""

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import reference
from reference.bench.result import Result

_PACKAGES = ("torch", "numpy", "matplotlib", "pytest-ddp")


def hash_of(value: Any) -> str:
    """SHA-256 of a value as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def hash_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def hash_of_code() -> str:
    """SHA-256 over the names and the texts of all modules of `reference`."""
    root = Path(reference.__path__[0])
    modules = sorted(root.rglob("*.py"))
    return hash_of({module.relative_to(root).as_posix(): hash_of_file(module) for module in modules})


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that measure and draw; of those that are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def shown(result: Result) -> dict[str, Any]:
    """Everything of a result but the raw numbers: what is computed from them, and the environment."""
    return {key: value for key, value in result.to_json().items() if key != "raw"}


def make(results: Mapping[str, Result], files: Mapping[str, Path], about: Mapping[str, Any]) -> dict[str, Any]:
    """The receipt of results, of the files that were made of them, and of facts about the run.

    Args:
        results: by name.
        files: by name: tables and pictures.
        about: facts that the report shows, such as its date.
    """
    receipt = {
        "about": dict(about),
        "code": hash_of_code(),
        "versions": versions(),
        "raw": {name: hash_of(result.raw) for name, result in results.items()},
        "shown": {name: hash_of(shown(result)) for name, result in results.items()},
        "files": {name: hash_of_file(path) for name, path in files.items()},
    }
    return {**receipt, "seal": hash_of(receipt)}


def seal_of(receipt: Mapping[str, Any]) -> str:
    """The seal that a receipt must have: the hash of its other entries."""
    return hash_of({key: value for key, value in receipt.items() if key != "seal"})
