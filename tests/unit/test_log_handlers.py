"""Around a distributed test, log records are captured as pytest captures them, and no handler is left behind."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import _pytest.logging
import pytest

from pytest_ddp.pytest_internals import log_handlers_attached

PYTESTS_OWN = _pytest.logging.catching_logs


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def attached(handler: logging.Handler):
    """Run a test in a session whose handlers are `handler` and another one."""
    logging_plugin = SimpleNamespace(caplog_handler=handler, report_handler=Records())
    return log_handlers_attached(SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=lambda _: logging_plugin)))


@contextmanager
def once(handler: logging.Handler, level: int | None = None) -> Iterator[logging.Handler]:
    """Capture logs in a phase of a test that has just begun."""
    with attached(handler), _pytest.logging.catching_logs(handler, level) as given:
        yield given


@pytest.fixture
def apart() -> Iterator[logging.Logger]:
    """A logger that does not propagate."""
    logger = logging.getLogger(__name__)
    logger.propagate = False
    yield logger
    logger.propagate = True


@pytest.mark.parametrize("way", [PYTESTS_OWN, once])
def test_records_of_all_loggers_are_captured(way, apart):
    root, handler = logging.getLogger(), Records()
    before = [root.level, list(root.handlers), list(apart.handlers)]
    with way(handler, level=logging.INFO) as given:
        assert given is handler
        logging.getLogger("some.child").info("one")
        logging.getLogger("some.child").debug("below the level")
        apart.warning("two")
    apart.warning("after")
    assert handler.messages == ["one", "two"]
    assert handler.level == logging.INFO
    assert [root.level, root.handlers, apart.handlers] == before


@pytest.mark.parametrize("way", [PYTESTS_OWN, once])
def test_a_test_may_remove_the_handler(way, apart):
    handler = Records()
    with way(handler):
        apart.handlers.clear()
        apart.warning("removed")
        logging.getLogger().warning("root")
    assert handler.messages == ["root"]


def test_each_phase_attaches_to_the_root_logger_again(apart):
    handler = Records()
    with attached(handler):
        for phase in ("setup", "call"):
            with _pytest.logging.catching_logs(handler):
                logging.getLogger().warning("%s", phase)
                apart.warning("%s, apart", phase)
                logging.getLogger().removeHandler(handler)
    assert handler.messages == ["setup", "setup, apart", "call", "call, apart"]


@pytest.mark.parametrize("way", [PYTESTS_OWN, once])
def test_a_handler_that_a_test_attaches_itself_gets_each_record_once(way, apart):
    """As tests do with `caplog.handler`, for a logger that does not propagate."""
    handler = Records()
    with way(handler):
        apart.addHandler(handler)
        apart.warning("itself")
        apart.getChild("below").warning("below")
    apart.removeHandler(handler)
    assert handler.messages == ["itself", "below"]


def test_the_handlers_of_another_session_are_attached_as_pytest_does(apart):
    ours, theirs = Records(), Records()
    with attached(ours):
        with _pytest.logging.catching_logs(theirs):
            apart.warning("theirs")
        apart.warning("after")
    assert theirs.messages == ["theirs"]


def test_no_handler_is_left_behind_even_after_an_error(apart):
    apart.handlers.clear()  # the handlers of the pytest that runs this test
    handler, inside = Records(), []

    def interrupted():
        with attached(handler):
            inside.append(handler in apart.handlers)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert inside == [True]
    assert apart.handlers == []
    assert _pytest.logging.catching_logs is PYTESTS_OWN


def test_a_session_without_logging_captures_nothing(apart):
    before = list(apart.handlers)
    config = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=lambda _: None))
    with log_handlers_attached(config):
        assert apart.handlers == before
