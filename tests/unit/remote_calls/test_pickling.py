"""Calls and results are pickled; what cannot be pickled is named; modules that ranks cannot import go by value."""

import importlib.util
import json.decoder
import sys
import threading
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType

import cloudpickle
import pytest

from pytest_ddp import UsageError
from pytest_ddp.remote_calls.pickling import _is_importable, _unimportable_modules, pickle_call, pickle_result

LOCK = threading.Lock()


def test_functions_and_arguments_arrive():
    assert cloudpickle.loads(pickle_call(max, (1, 2), {"key": abs})) == (max, (1, 2), {"key": abs})


def test_no_function():
    with pytest.raises(UsageError, match=r"takes a function, then its arguments; got 5"):
        pickle_call(5, (), {})


@pytest.mark.parametrize(
    ("arguments", "keywords", "culprit"),
    [
        (
            (1, LOCK),
            {},
            r"argument 2, a _thread\.lock, cannot be sent to the ranks \(cannot pickle '_thread.lock' object\)",
        ),
        (
            (),
            {"items": (i for i in "ab")},
            r"argument 'items', a generator, cannot be sent .* create it inside the function",
        ),
    ],
)
def test_arguments_that_cannot_be_pickled_are_named(arguments, keywords, culprit):
    with pytest.raises(UsageError, match=culprit):
        pickle_call(print, arguments, keywords)


def test_variables_of_the_function_that_cannot_be_pickled_are_named():
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"variable 'lock' that the function uses, a _thread\.lock, cannot"):
        pickle_call(lambda: lock, (), {})


def test_results_that_cannot_be_pickled_are_named():
    assert cloudpickle.loads(pickle_result([1])) == [1]
    with pytest.raises(
        UsageError, match=r"the result of the function, a _thread.lock, cannot be sent back .*: return plain"
    ):
        pickle_result(LOCK)


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
    assert all(_is_importable(module) for module in (sys, json, json.decoder, pytest))


def test_what_only_this_process_knows_travels_with_all_of_its_package(tmp_path, monkeypatch):
    package = load("lonely", tmp_path / "__init__.py", monkeypatch)
    package.__path__ = [str(tmp_path)]
    helper = load("lonely.helper", tmp_path / "helper.py", monkeypatch)
    assert not _is_importable(package)
    assert not _is_importable(helper), "its file can be found, but only through a package that ranks do not have"
    assert (
        _unimportable_modules(helper.work) == _unimportable_modules(partial(partial(helper.work))) == [package, helper]
    )


def test_a_function_of_an_importable_module_takes_nothing_along():
    assert _unimportable_modules(json.loads) == _unimportable_modules(len) == []


def test_modules_of_editable_installations_are_importable(tmp_path, monkeypatch):
    module = load("edited", tmp_path / "edited.py", monkeypatch)
    assert not _is_importable(module)

    class Finder:
        """Knows one module, as the finders of editable installations do."""

        @staticmethod
        def find_spec(name: str, _: object) -> ModuleSpec | None:
            return importlib.util.spec_from_file_location(name, tmp_path / "edited.py") if name == "edited" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert _is_importable(module)
