"""Collects test files on a rank one at a time, and keeps the folders, so that pytest sees one tree.

Pytest collects once. If it collected a folder again, it would make another collector for it: fixtures from conftest
files of the first one would be lost, and fixtures of package scope would be torn down between two files.
"""

import os
import re
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from pytest_ddp.pytest_internals import pending_conftests, rewrite_assertions_of


class RankCollection:
    """Hooks of a rank's session."""

    def __init__(self) -> None:
        self._failed: list[pytest.CollectReport] = []
        self._folders: dict[Path, pytest.Collector | None] = {}
        self._only: Path | None = None

    def collect(self, file: Path, session: pytest.Session) -> tuple[Sequence[pytest.Item], pytest.CollectReport | None]:
        """Return the tests of a file; if it, or a conftest file above it, cannot be collected, no tests and the report.

        Pytest accepts no argument with "[" or "::" in the name of a folder, but collects such folders below another
        one. Such a file is collected through a folder above it, in which everything else is ignored.
        """
        relative = Path(os.path.relpath(file, session.config.invocation_params.dir))
        argument = next(path for path in (file, relative, *relative.parents) if not re.search(r"\[|::", str(path)))
        self._only = None if argument == file else file
        self._failed.clear()
        rewrite_assertions_of(session)
        try:
            items = session.perform_collect([str(argument)], genitems=True)
        except pytest.UsageError:
            if not self._failed:
                raise
            items = []
        return items, self._failed[0] if self._failed else None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep the report of a collection that failed or skipped."""
        if not report.passed:
            self._failed.append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Ignore paths that are not on the way to the file."""
        leads_there = self._only is None or collection_path in (self._only, *self._only.parents)
        return None if leads_there else True

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_directory(self, path: Path) -> Generator[None, pytest.Collector | None, pytest.Collector | None]:
        """Return the first collector of this folder."""
        made = yield
        return self._folders.setdefault(path, made)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_finish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Keep the conftest files of folders that are not collected yet; pytest drops them after its collection."""
        conftests = pending_conftests(session)
        pending = dict(conftests)
        yield
        conftests.update(pending)
