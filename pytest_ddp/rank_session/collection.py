"""What lets a rank collect test files one by one, as they are asked for, and still see one tree of folders.

Pytest collects once. To it, folders collected again are other folders: fixtures of conftest files that belong to the
first ones would be lost, fixtures of package scope be torn down between files. So a rank keeps its folders, and does
not take the end of one file's collection for the end of all.
"""

import os
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from pytest_ddp.pytest_internals import pending_conftests


class RankCollection:
    """Hooks of a rank's session."""

    def __init__(self) -> None:
        self._troubles: list[pytest.CollectReport] = []
        self._folders: dict[Path, pytest.Collector | None] = {}
        self._only: Path | None = None

    def collect(self, file: Path, session: pytest.Session) -> Sequence[pytest.Item]:
        """Return the tests of a file; none where there was trouble.

        Pytest takes no argument in which the name of a folder holds "[" or "::", yet finds what is there from above:
        such a file is asked for by a folder above it, in which nothing else is looked at.
        """
        inside = Path(os.path.relpath(file, session.config.invocation_params.dir))
        asked = next(path for path in (file, inside, *inside.parents) if _may_be_asked_for(path))
        self._only = None if asked == file else file
        self._troubles.clear()
        try:
            return session.perform_collect([str(asked)], genitems=True)
        except pytest.UsageError:
            if not self._troubles:
                raise
            return []

    @property
    def trouble(self) -> pytest.CollectReport | None:
        """What kept the latest file, or a conftest file on the way to it, from being collected here."""
        return self._troubles[0] if self._troubles else None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep what says why something was not collected."""
        if not report.passed:
            self._troubles.append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Ignore what does not lead to the file."""
        leads_there = self._only is None or collection_path in (self._only, *self._only.parents)
        return None if leads_there else True

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_directory(self, path: Path) -> Generator[None, pytest.Collector | None, pytest.Collector | None]:
        """Return the folder's first collector again."""
        made = yield
        return self._folders.setdefault(path, made)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_finish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Keep conftest files whose folders have not been collected yet; pytest would drop them here."""
        conftests = pending_conftests(session)
        pending = dict(conftests)
        yield
        conftests.update(pending)


def _may_be_asked_for(path: Path) -> bool:
    return not any(mark in str(path) for mark in ("[", "::"))
