"""Lets pytest capture log records around distributed tests in less time.

Around each phase of a test, pytest attaches two handlers to the root logger and to every logger that does not
propagate, and takes logging's lock for each of them. torch has about sixty such loggers, which costs a trivial test a
fifth of its time. Here each of those loggers keeps one handler, which forwards records to the handlers that capture at
the time. These loggers are looked up again where other code may have run: for each test in the controller, for each
phase on a rank.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import ClassVar

from pytest_ddp.pytest_internals import attaches_to_every_logger, log_catcher, set_log_catcher

_lock = logging._lock  # type: ignore[attr-defined]  # noqa: SLF001  as logging does to change several loggers


class ForwardingHandler(logging.Handler):
    """Forwards the records of loggers that do not propagate to `targets`, the handlers that capture now."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[logging.Handler] = []
        self._loggers: list[logging.Logger] = []

    def attach(self) -> None:
        """Attach this handler to the loggers that do not propagate now, and to no others."""
        known = logging.root.manager.loggerDict.values()
        loggers = [logger for logger in known if isinstance(logger, logging.Logger) and not logger.propagate]
        if loggers != self._loggers:
            self.detach()
        for logger in loggers:
            if self not in logger.handlers:  # a test may have removed it
                with _lock:
                    logger.handlers.append(self)
        self._loggers = loggers

    def detach(self) -> None:
        """Detach this handler from all loggers."""
        with _lock:
            for logger in self._loggers:
                if self in logger.handlers:
                    logger.handlers.remove(self)
        self._loggers = []

    def handle(self, record: logging.LogRecord) -> bool:
        """Forward a record, except to handlers that a test has attached to the logger, such as `caplog.handler`."""
        others = [handler for handler in _handlers(logging.getLogger(record.name)) if handler is not self]
        for handler in tuple(self.targets):  # a copy: another thread may end a phase
            if handler not in others and record.levelno >= handler.level:
                handler.handle(record)
        if not (self.targets or others) and logging.lastResort and record.levelno >= logging.lastResort.level:
            logging.lastResort.handle(record)  # as logging does for a logger without handlers
        return True


def _handlers(logger: logging.Logger) -> list[logging.Handler]:
    """Return the handlers that receive records of this logger."""
    found = list(logger.handlers)
    while logger.propagate and logger.parent is not None:
        logger = logger.parent
        found += logger.handlers
    return found


class CatchingLogs:
    """Replaces pytest's `catching_logs`; `forwarder` must be attached already."""

    forwarder: ClassVar[ForwardingHandler] = ForwardingHandler()

    def __init__(self, handler: logging.Handler, level: int | None = None) -> None:
        self._handler, self._level = handler, level
        self._added = False

    def __enter__(self) -> logging.Handler:
        """Attach the handler."""
        root, targets = logging.root, self.forwarder.targets
        if self._level is not None:
            self._handler.setLevel(self._level)
        if self._handler not in targets:
            targets.append(self._handler)
            root.addHandler(self._handler)
            self._added = True
        if self._level is not None:
            self._root_level = root.level
            root.setLevel(min(root.level, self._level))
        return self._handler

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Detach the handler."""
        if self._level is not None:
            logging.root.setLevel(self._root_level)
        if self._added:
            self.forwarder.targets.remove(self._handler)
            logging.root.removeHandler(self._handler)


def install_fast_log_capture() -> None:
    """Replace pytest's `catching_logs` in this process, if pytest attaches handlers to every logger."""
    if attaches_to_every_logger():
        set_log_catcher(CatchingLogs)
        update_loggers()


def update_loggers() -> None:
    """Look up which loggers do not propagate now, if pytest's `catching_logs` is replaced."""
    if log_catcher() is CatchingLogs:
        CatchingLogs.forwarder.attach()


@contextmanager
def fast_log_capture() -> Iterator[None]:
    """Replace pytest's `catching_logs` while the body runs."""
    before = log_catcher()
    install_fast_log_capture()
    try:
        yield
    finally:
        set_log_catcher(before)
        CatchingLogs.forwarder.detach()
