"""The scripts of a suite's failures: in pytest's cache folder, or below the folder of `--conformance-repro`."""

import shlex
from pathlib import Path

import pytest

_CACHED = "conformance"
NO_FOLDER = "No script: pytest has no cache folder here. `--conformance-repro=DIR` names a folder for scripts."


def folder_of(item: pytest.Item) -> Path | None:
    """Return the folder for scripts of the suite of an item: one for each call of `verify`.

    None if pytest has no cache folder: it is off, or cannot be made.
    """
    if below := _below(item.config):
        file, root = item.path, item.config.rootpath
        inside = file.relative_to(root if file.is_relative_to(root) else file.anchor)
        names = item.nodeid.partition("::")[2].partition("[")[0].split("::")
        return below.joinpath(inside.with_suffix(""), *names)
    return None


def _below(config: pytest.Config) -> Path | None:
    given: Path | None = config.getoption("conformance_repro")
    if given is not None:
        return config.invocation_params.dir / given
    cache: pytest.Cache | None = getattr(config, "cache", None)  # -p no:cacheprovider
    try:
        return cache.mkdir(_CACHED) if cache else None
    except OSError:
        return None


def shown(script: str) -> str:
    """Return the path of a script as a command has it: relative, if it is below the current folder."""
    path, here = Path(script), Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
