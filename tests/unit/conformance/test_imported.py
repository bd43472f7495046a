"""Modules that were imported since are found at the end of `sys.modules`, and the grader's among them."""

import sys
from types import ModuleType

import pytest

from conformance.ranks import imported


@pytest.fixture
def module(monkeypatch):
    """Adds an empty module under a name."""

    def add(name):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))

    return add


def test_what_was_imported_since_comes_latest_first(module):
    before = imported.last()
    assert list(imported.since(before)) == []
    module("later_one")
    module("later_two")
    assert list(imported.since(before)) == ["later_two", "later_one"]


def test_all_modules_count_as_new_if_the_one_before_is_gone(module):
    module("gone")
    del sys.modules["gone"]
    assert set(imported.since("gone")) == set(sys.modules)


def test_the_modules_of_the_grader_are_known_also_those_that_come_later(module):
    of_ours = {name for name in sys.modules if name.partition(".")[0] in {"conformance", "pytest_ddp"}}
    assert dict(imported.ours()).keys() == of_ours
    module("conformance.of_a_test")
    module("of_another_package")
    assert dict(imported.ours()).keys() == of_ours | {"conformance.of_a_test"}


def test_a_module_that_is_taken_away_is_no_longer_there(module):
    module("pytest_ddp.of_a_test")
    assert "pytest_ddp.of_a_test" in dict(imported.ours())
    del sys.modules["pytest_ddp.of_a_test"]
    assert "pytest_ddp.of_a_test" not in dict(imported.ours())
