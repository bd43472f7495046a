"""Lets classes of the harness start processes for their tests."""

import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "world_size(number): the ranks that a test needs")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if getattr(item.cls, "is_dist_test", False):
        item.cls()(item)
        item.runtest = lambda: None
