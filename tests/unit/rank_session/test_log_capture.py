"""Log records are captured on a rank as pytest captures them, and no handler is left behind."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import _pytest.logging
import pytest

from pytest_ddp.rank_session.log_capture import CatchingLogs, fast_log_capture, install_fast_log_capture, update_loggers

PYTESTS_OWN = _pytest.logging.catching_logs


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextmanager
def fast(handler: logging.Handler, level: int | None = None) -> Iterator[logging.Handler]:
    """Capture logs as in a test that has just begun."""
    CatchingLogs.forwarder.attach()
    with CatchingLogs(handler, level) as given:
        yield given


@pytest.fixture
def apart() -> Iterator[logging.Logger]:
    """A logger that does not propagate."""
    logger = logging.getLogger(__name__)
    logger.propagate = False
    yield logger
    logger.propagate = True
    CatchingLogs.forwarder.detach()


@pytest.mark.parametrize("way", [PYTESTS_OWN, fast])
def test_records_of_all_loggers_are_captured(way, apart):
    root, handler = logging.getLogger(), Records()
    before = [root.level, list(root.handlers), list(apart.handlers)]
    with way(handler, level=logging.INFO) as given:
        assert given is handler
        logging.getLogger("some.child").info("one")
        logging.getLogger("some.child").debug("below the level")
        apart.warning("two")
    apart.warning("after")
    CatchingLogs.forwarder.detach()
    assert handler.messages == ["one", "two"]
    assert handler.level == logging.INFO
    assert [root.level, root.handlers, apart.handlers] == before


@pytest.mark.parametrize("way", [PYTESTS_OWN, fast])
def test_a_test_may_remove_the_handler(way, apart):
    handler = Records()
    with way(handler):
        apart.handlers.clear()
        apart.warning("removed")
        logging.getLogger().warning("root")
    assert handler.messages == ["root"]


def test_a_handler_is_attached_once(apart):
    handler = Records()
    with fast(handler), CatchingLogs(handler):
        apart.warning("once")
        logging.getLogger().warning("twice")
    logging.getLogger().warning("after")
    apart.warning("after")
    assert handler.messages == ["once", "twice"]


@pytest.mark.parametrize("way", [PYTESTS_OWN, fast])
def test_a_handler_that_a_test_attaches_itself_gets_each_record_once(way, apart):
    """As tests do with `caplog.handler`, for a logger that does not propagate."""
    handler = Records()
    with way(handler):
        apart.addHandler(handler)
        apart.warning("itself")
        apart.getChild("below").warning("below")
    apart.removeHandler(handler)
    assert handler.messages == ["itself", "below"]


def test_update_loggers_finds_loggers_that_have_changed(apart, monkeypatch):
    monkeypatch.setattr(_pytest.logging, "catching_logs", CatchingLogs)
    handler = Records()
    for propagates in (False, True, False):
        apart.propagate = propagates
        update_loggers()
        with CatchingLogs(handler):
            apart.warning("%s", propagates)
    assert handler.messages == ["False", "True", "False"]


def test_loggers_are_not_touched_while_pytests_own_capture_is_in_use(apart, monkeypatch):
    monkeypatch.setattr(_pytest.logging, "catching_logs", PYTESTS_OWN)
    update_loggers()
    assert CatchingLogs.forwarder not in apart.handlers


def test_between_phases_records_go_where_they_go_without_us(apart, monkeypatch):
    last = Records()
    last.setLevel(logging.WARNING)
    monkeypatch.setattr(logging, "lastResort", last)
    apart.handlers.clear()  # the handlers of the pytest that runs this test
    with fast(Records()):
        apart.warning("caught")
    apart.warning("no other handler")
    apart.info("below the level")
    own = Records()
    apart.addHandler(own)
    apart.warning("own handler")
    apart.removeHandler(own)
    assert (last.messages, own.messages) == (["no other handler"], ["own handler"])


def test_capture_is_replaced_only_in_a_pytest_that_attaches_to_every_logger(monkeypatch):
    class OfOlderPytest:
        """Attaches to the root logger only."""

    monkeypatch.setattr(_pytest.logging, "catching_logs", OfOlderPytest)
    install_fast_log_capture()
    assert _pytest.logging.catching_logs is OfOlderPytest
    monkeypatch.setattr(_pytest.logging, "catching_logs", PYTESTS_OWN)
    install_fast_log_capture()
    assert _pytest.logging.catching_logs is CatchingLogs


@pytest.mark.skipif(not hasattr(PYTESTS_OWN, "__slots__"), reason="this pytest attaches to the root logger only")
def test_pytests_own_capture_is_restored_even_after_an_error(monkeypatch):
    monkeypatch.setattr(_pytest.logging, "catching_logs", PYTESTS_OWN)
    inside = []

    def interrupted():
        with fast_log_capture():
            inside.append(_pytest.logging.catching_logs)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert inside == [CatchingLogs]
    assert _pytest.logging.catching_logs is PYTESTS_OWN


def test_no_handler_stays_on_loggers_in_the_controller(apart):
    apart.handlers.clear()  # the handlers of the pytest that runs this test
    with fast_log_capture(), CatchingLogs(Records()):
        assert CatchingLogs.forwarder in apart.handlers
    assert apart.handlers == []
