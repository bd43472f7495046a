"""Ctrl-C during a distributed test: the summary says what its ranks were doing."""

import pytest

from pytest_ddp.failure import RankFailure


class Interruption:
    """Hooks that remember an interrupted run of ranks (see `RankGroup.run`) until the summary."""

    def __init__(self) -> None:
        self._test = ""
        self._ranks: RankFailure | None = None

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note which test runs."""
        self._test = nodeid

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Keep what the ranks were doing, if it was a run of ranks that was interrupted."""
        self._ranks = ranks_of(excinfo.value)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell it."""
        if self._ranks is not None:
            terminalreporter.section(f"interrupted: {self._test}")
            terminalreporter.write_line(str(self._ranks))


def ranks_of(error: BaseException | None) -> RankFailure | None:
    """Return what an interrupt, or the one that led to `error`, says of the ranks that it met."""
    while error is not None:
        found: RankFailure | None = getattr(error, "ranks", None)
        if found is not None:
            return found
        error = error.__cause__ or error.__context__
    return None
