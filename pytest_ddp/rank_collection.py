"""What lets a rank collect test files one by one, as they are asked for, and still see one tree of folders.

Pytest collects once. To it, folders collected again are other folders: fixtures of conftest files that belong to the
first ones would be lost, fixtures of package scope be torn down between files. So a rank keeps its folders, and does
not take the end of one file's collection for the end of all.
"""

from collections.abc import Generator
from pathlib import Path

import pytest


class RankCollection:
    """Hooks of a rank's session."""

    def __init__(self) -> None:
        self._folders: dict[Path, pytest.Collector | None] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_directory(self, path: Path) -> Generator[None, pytest.Collector | None, pytest.Collector | None]:
        """Return the folder's first collector again."""
        made = yield
        return self._folders.setdefault(path, made)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_finish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Keep conftest files whose folders have not been collected yet; pytest would drop them here."""
        conftests = session._fixturemanager._pending_conftests  # noqa: SLF001  no public way
        pending = dict(conftests)
        yield
        conftests.update(pending)
