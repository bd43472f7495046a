"""Lets pytest catch log records around distributed tests as it does anywhere, in less time.

Around every phase of a test pytest attaches two handlers to the root logger and to each logger that does not propagate,
and takes logging's lock for every one. torch has some sixty such loggers: a trivial test spent a fifth of its time so.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import ClassVar

import _pytest.logging

_lock = logging._lock  # type: ignore[attr-defined]  # noqa: SLF001  as logging does where it changes several loggers


class CatchingLogs:
    """Pytest's `catching_logs`, but for taking the lock once, and for looking for loggers once.

    Pytest enters two of these one right after the other; the second one takes over what the first has found.
    """

    _latest: ClassVar[tuple[object, int, list[logging.Logger]] | None] = None  # who looked, among how many, and found

    def __init__(self, handler: logging.Handler, level: int | None = None) -> None:
        self._handler, self._level = handler, level
        self._attached: list[logging.Logger] = []

    def __enter__(self) -> logging.Handler:
        """Attach the handler."""
        root = logging.getLogger()
        if self._level is not None:
            self._handler.setLevel(self._level)
        with _lock:
            self._attached = [logger for logger in self._loggers(root) if self._handler not in logger.handlers]
            for logger in self._attached:
                logger.handlers.append(self._handler)
        if self._level is not None:
            self._before = root.level
            root.setLevel(min(root.level, self._level))
        return self._handler

    def _loggers(self, root: logging.Logger) -> list[logging.Logger]:
        """Return the root logger and those that do not propagate."""
        known, latest = root.manager.loggerDict, CatchingLogs._latest
        if latest is not None and latest[1] == len(known):
            CatchingLogs._latest = None
            return latest[2]
        apart = [logger for logger in known.values() if isinstance(logger, logging.Logger) and not logger.propagate]
        CatchingLogs._latest = self, len(known), [root, *apart]
        return [root, *apart]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Detach the handler."""
        if CatchingLogs._latest is not None and CatchingLogs._latest[0] is self:
            CatchingLogs._latest = None
        if self._level is not None:
            logging.getLogger().setLevel(self._before)
        with _lock:
            for logger in self._attached:
                if self._handler in logger.handlers:
                    logger.handlers.remove(self._handler)


def catch_logs_quickly() -> None:
    """Replace pytest's own way, in this process, where that attaches to loggers which do not propagate (since 9.2)."""
    if "attached_loggers" in getattr(_pytest.logging.catching_logs, "__slots__", ()):
        _pytest.logging.catching_logs = CatchingLogs  # type: ignore[assignment,misc]


@contextmanager
def caught_quickly() -> Iterator[None]:
    """Replace pytest's own way for a while."""
    before = _pytest.logging.catching_logs
    catch_logs_quickly()
    try:
        yield
    finally:
        _pytest.logging.catching_logs = before  # type: ignore[misc]  # what it was
