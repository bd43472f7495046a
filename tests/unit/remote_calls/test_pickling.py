"""Which modules ranks can import, and which must travel by value."""

import importlib.util
import json.decoder
import sys
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from pytest_ddp.remote_calls.pickling import _beside, _importable


def load(name, file, monkeypatch) -> ModuleType:
    """Load a module under a name that no path leads to, as pytest's importlib mode does."""
    file.parent.mkdir(exist_ok=True)
    file.write_text("def work(): pass")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_installed_and_built_in_modules_are_importable():
    assert all(_importable(module) for module in (sys, json, json.decoder, pytest))


def test_what_only_this_process_knows_travels_with_all_of_its_package(tmp_path, monkeypatch):
    package = load("lonely", tmp_path / "__init__.py", monkeypatch)
    package.__path__ = [str(tmp_path)]
    helper = load("lonely.helper", tmp_path / "helper.py", monkeypatch)
    assert not _importable(package)
    assert not _importable(helper), "its file can be found, but only through a package that ranks do not have"
    assert _beside(helper.work) == _beside(partial(partial(helper.work))) == [package, helper]


def test_a_function_of_an_importable_module_takes_nothing_along():
    assert _beside(json.loads) == _beside(len) == []


def test_modules_of_editable_installations_are_importable(tmp_path, monkeypatch):
    module = load("edited", tmp_path / "edited.py", monkeypatch)
    assert not _importable(module)

    class Finder:
        """Knows one module, as the finders of editable installations do."""

        @staticmethod
        def find_spec(name: str, _: object) -> ModuleSpec | None:
            return importlib.util.spec_from_file_location(name, tmp_path / "edited.py") if name == "edited" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert _importable(module)
