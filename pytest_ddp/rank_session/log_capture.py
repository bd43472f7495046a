"""Lets pytest catch log records around distributed tests as it does anywhere, in less time.

Around every phase of a test pytest attaches two handlers to the root logger and to each logger that does not propagate,
and takes logging's lock for every one. torch has some sixty such loggers: a trivial test spent a fifth of its time so.
Here each of those has one handler that stays, a relay to whoever catches at the moment; which loggers these are is
looked at where other code may have run since: once for a test in the controller, for what is asked of a rank there.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import ClassVar

from pytest_ddp.pytest_internals import attaches_to_every_logger, log_catcher, set_log_catcher

_lock = logging._lock  # type: ignore[attr-defined]  # noqa: SLF001  as logging does where it changes several loggers


class Relay(logging.Handler):
    """Hands the records of loggers that do not propagate to the handlers in `catching`."""

    def __init__(self) -> None:
        super().__init__()
        self.catching: list[logging.Handler] = []
        self._loggers: list[logging.Logger] = []

    def attach(self) -> None:
        """Be on every logger that does not propagate, and on no other."""
        known = logging.root.manager.loggerDict.values()
        apart = [logger for logger in known if isinstance(logger, logging.Logger) and not logger.propagate]
        if apart != self._loggers:
            self.detach()
        for logger in apart:
            if self not in logger.handlers:  # a test may have taken it off
                with _lock:
                    logger.handlers.append(self)
        self._loggers = apart

    def detach(self) -> None:
        """Leave every logger."""
        with _lock:
            for logger in self._loggers:
                if self in logger.handlers:
                    logger.handlers.remove(self)
        self._loggers = []

    def handle(self, record: logging.LogRecord) -> bool:
        """Hand the record on, but not to handlers that get it from their logger too: tests attach `caplog.handler`."""
        others = [handler for handler in _handlers(logging.getLogger(record.name)) if handler is not self]
        for handler in tuple(self.catching):  # another thread may be at the end of a phase
            if handler not in others and record.levelno >= handler.level:
                handler.handle(record)
        if not (self.catching or others) and logging.lastResort and record.levelno >= logging.lastResort.level:
            logging.lastResort.handle(record)  # as if this one were not here
        return True


def _handlers(logger: logging.Logger) -> list[logging.Handler]:
    """Return the handlers that a record of this logger comes to."""
    found = list(logger.handlers)
    while logger.propagate and logger.parent is not None:
        logger = logger.parent
        found += logger.handlers
    return found


class CatchingLogs:
    """Pytest's `catching_logs`, but for the relay, which somebody has to attach before."""

    relay: ClassVar[Relay] = Relay()

    def __init__(self, handler: logging.Handler, level: int | None = None) -> None:
        self._handler, self._level = handler, level
        self._added = False

    def __enter__(self) -> logging.Handler:
        """Attach the handler."""
        root, relay = logging.root, self.relay
        if self._level is not None:
            self._handler.setLevel(self._level)
        if self._handler not in relay.catching:
            relay.catching.append(self._handler)
            root.addHandler(self._handler)
            self._added = True
        if self._level is not None:
            self._before = root.level
            root.setLevel(min(root.level, self._level))
        return self._handler

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Detach the handler."""
        if self._level is not None:
            logging.root.setLevel(self._before)
        if self._added:
            self.relay.catching.remove(self._handler)
            logging.root.removeHandler(self._handler)


def install_fast_log_capture() -> None:
    """Replace pytest's own way in this process, where that attaches to loggers which do not propagate."""
    if attaches_to_every_logger():
        set_log_catcher(CatchingLogs)
        update_loggers()


def update_loggers() -> None:
    """See which loggers do not propagate now; a handler of ours is on these, where pytest's own way is replaced."""
    if log_catcher() is CatchingLogs:
        CatchingLogs.relay.attach()


@contextmanager
def fast_log_capture() -> Iterator[None]:
    """Replace pytest's own way for a while."""
    before = log_catcher()
    install_fast_log_capture()
    try:
        yield
    finally:
        set_log_catcher(before)
        CatchingLogs.relay.detach()
