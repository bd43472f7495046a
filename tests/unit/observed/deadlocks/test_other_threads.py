"""Whether other threads of Python are there; garbage is not collected during the look, in which CPython can hang."""

import gc
import sys
import threading
from threading import get_ident

import pytest

from pytest_ddp.observed.deadlocks.announcer import has_company


@pytest.fixture
def other():
    """A thread that waits until the test is over."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield thread
    over.set()
    thread.join()


def test_a_thread_is_company_unless_it_is_named(other):
    others = sys._current_frames().keys() - {other.ident}
    assert has_company(others)
    assert not has_company({*others, other.ident})


@pytest.mark.parametrize("collects", [True, False])
def test_nothing_is_collected_meanwhile_and_what_was_set_stays(monkeypatch, collects):
    seen = []
    monkeypatch.setattr(sys, "_current_frames", lambda: seen.append(gc.isenabled()) or {get_ident(): sys._getframe()})
    before = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        assert not has_company({get_ident()})
        assert gc.isenabled() is collects
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == [False]
