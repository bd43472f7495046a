"""The private names of pytest that this package uses, and no others.

A new release of pytest that changes one of them breaks this module and no other. All are as in pytest 9.1 and 9.2.
tests/unit/test_pytest_internals.py checks each, and says which feature needs it.
"""

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import _pytest.config
import _pytest.logging
import pytest
from _pytest import debugging, junitxml
from _pytest._code.code import (
    ExceptionChainRepr,
    ExceptionRepr,
    ReprEntry,
    ReprExceptionInfo,
    ReprFileLocation,
    ReprTraceback,
)
from _pytest.assertion.rewrite import assertstate_key
from _pytest.fixtures import FixtureFunctionDefinition
from _pytest.outcomes import Skipped
from _pytest.runner import call_and_report

__all__ = [
    "AS_PYTEST",
    "SUBTEST_CONTEXT",
    "ExceptionChainRepr",
    "ExceptionRepr",
    "FixtureFunctionDefinition",
    "ReprEntry",
    "ReprExceptionInfo",
    "ReprFileLocation",
    "ReprTraceback",
    "Skipped",
    "call_and_report",
]

AS_PYTEST = {"_ispytest": True}  # keyword of constructors that pytest reserves for itself
SUBTEST_CONTEXT = "_subtest.context"  # key of the message and parameters in the serialised report of a subtest


# The configuration and the session


def new_config(options: dict[str, Any], args: list[str]) -> pytest.Config:
    """Return the configuration of another pytest, made of parsed options and of arguments."""
    return pytest.Config.fromdictargs(options, args)


def import_default_plugins() -> None:
    """Import the modules of all plugins that pytest loads by default."""
    for plugin in _pytest.config.default_plugins:
        importlib.import_module(f"_pytest.{plugin}")


def base_temp(config: pytest.Config) -> Path:
    """Return the folder in which `tmp_path` makes its folders."""
    folder: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # set by the plugin tmpdir
    return folder


@contextmanager
def without_capture(config: pytest.Config) -> Iterator[None]:
    """Let this process have its own standard streams, while a test runs."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    if capture is None:
        yield
        return
    capture.suspend_global_capture(in_=True)
    try:
        yield
    finally:
        capture.resume_global_capture()


def pending_conftests(session: pytest.Session) -> dict[Path, object]:
    """Return the conftest plugins, by folder, whose fixtures pytest has not registered yet."""
    return session._fixturemanager._pending_conftests


def rewrite_assertions_of(session: pytest.Session) -> None:
    """Rewrite the assertions of files collected from now on, whatever their names, as `pytest FILE` does."""
    state = session.config.stash.get(assertstate_key, None)
    if state is not None and state.hook is not None:
        state.hook.set_session(session)


# The phases of a test


def begin_request(item: Any) -> None:
    """Give a test a new `request` and no fixture values, as pytest does before its setup."""
    item._initrequest()


def end_request(item: Any) -> None:
    """Take the `request` and the fixture values from a test, as pytest does after its teardown."""
    item._request = False
    item.funcargs = None


@contextmanager
def replaced_request(item: Any, request: object) -> Iterator[None]:
    """Show plugins another `request` of a test for a while."""
    before = item._request
    item._request = request
    try:
        yield
    finally:
        item._request = before


def tear_down(session: pytest.Session, upcoming: pytest.Item | None) -> None:
    """Finish every fixture that is set up, except for those that the upcoming test uses too."""
    session._setupstate.teardown_exact(upcoming)


def has_set_up(session: pytest.Session) -> bool:
    """Whether a test or a collector is still set up."""
    return bool(session._setupstate.stack)


class SetUpState:
    """What pytest keeps once in a session, for a process in which several ranks are set up.

    An object holds the state of one rank while another one runs: which nodes are set up, the test's attributes and
    stash, the values of fixtures, the fixture that captures, and the log records.
    """

    def __init__(self, session: pytest.Session) -> None:
        self._setup = type(session._setupstate)()
        self._fixtures: dict[Any, tuple[Any, list[Any]]] = {}
        self._attributes: dict[str, Any] | None = None
        self._capturing: Any = None
        self._logs: list[tuple[Any, ...]] = []

    def begin(self, item: pytest.Item) -> None:
        """Begin a test with the attributes and the stash that it was collected with, and an instance of its own."""
        stash = pytest.Stash()
        stash._storage.update(item.stash._storage)
        own = {name: list(value) for name, value in vars(item).items() if isinstance(value, list)}
        self._attributes = {**vars(item), **own, "stash": stash}
        if self._attributes.get("_instance") is not None:
            del self._attributes["_instance"], self._attributes["_obj"]

    @property
    def has_set_up(self) -> bool:
        """Whether the rank is still set up."""
        return bool(self._setup.stack)

    def swap(self, session: pytest.Session, item: Any, fixtures: "dict[Any, None]") -> None:
        """Exchange this state and the current one; `fixtures` are the definitions that have values now, changed too."""
        now = {one: (one.cached_result, one._finalizers) for one in fixtures if one.cached_result or one._finalizers}
        for one in now:
            one.cached_result, one._finalizers = None, []
        for one, (result, finalizers) in self._fixtures.items():
            one.cached_result, one._finalizers = result, finalizers
        fixtures.clear()
        fixtures.update(dict.fromkeys(self._fixtures))
        self._fixtures = now
        session._setupstate, self._setup = self._setup, session._setupstate
        if item is not None and self._attributes is not None:
            self._attributes, item.__dict__ = vars(item), self._attributes
        self._swap_captured(session.config)

    def _swap_captured(self, config: pytest.Config) -> None:
        capture = config.pluginmanager.get_plugin("capturemanager")
        if capture is not None:
            self._capturing, capture._capture_fixture = capture._capture_fixture, self._capturing
        plugin = config.pluginmanager.get_plugin("logging-plugin")
        handlers = [plugin.caplog_handler, plugin.report_handler] if plugin else []
        now = [(handler.records, handler.stream, handler.level) for handler in handlers]
        for handler, (records, stream, level) in zip(handlers, self._logs, strict=False):
            handler.records, handler.stream, handler.level = records, stream, level
        self._logs = now


# Fixtures and parameters


def fixture_definitions(item: Any) -> Mapping[str, Sequence[pytest.FixtureDef[Any]]]:
    """Return the definitions of each fixture that a test uses, the one in force last; none if it takes no fixtures."""
    info = getattr(item, "_fixtureinfo", None)
    return info.name2fixturedefs if info else {}


def argument_names(item: Any) -> Sequence[str]:
    """Return the names of the fixtures and parameters that a test function takes."""
    names: Sequence[str] = item._fixtureinfo.argnames
    return names


def parameters(item: Any) -> Mapping[str, Any]:
    """Return the values of a test's parameters, by name."""
    return item.callspec.params if hasattr(item, "callspec") else {}


def parameter_index(request: pytest.FixtureRequest) -> int:
    """Return the position of a fixture's parameter among the values that it takes; 0 if it has none."""
    index: int = request.param_index  # type: ignore[attr-defined]  # of the subclass that fixtures get
    return index


def decorated_function(definition: FixtureFunctionDefinition) -> Callable[..., Any]:
    """Return the function below `@pytest.fixture`."""
    return definition._get_wrapped_function()


def set_fixture_value(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest, value: object) -> object:
    """Give a fixture a value instead of setting it up; return the value."""
    fixturedef.cached_result = value, fixturedef.cache_key(request), None  # type: ignore[arg-type]
    return value


def keep_failure(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest, error: BaseException) -> None:
    """Let pytest raise this error if it needs the fixture again; it expects a result of any setup that ran."""
    key = fixturedef.cache_key(request)  # type: ignore[arg-type]
    fixturedef.cached_result = None, key, (error, error.__traceback__)


# Reports


def hide_from_summary(report: pytest.TestReport) -> None:
    """Leave a failure out of the section FAILURES, because `--pdb` has shown it."""
    report._pdbshown = True  # type: ignore[attr-defined]


def drop_captured(item: pytest.Item, when: str) -> None:
    """Forget the output and the log records that pytest captured in a phase of a test."""
    item._report_sections[:] = [section for section in item._report_sections if section[0] != when]


def check_property_name(name: object) -> None:
    """Raise TypeError unless the name of a property is a string, as pytest's fixtures that record properties do."""
    junitxml._check_record_param_type("name", name)  # type: ignore[arg-type]


def add_suite_property(config: pytest.Config, name: str, value: str) -> None:
    """Write a property of the whole run to the JUnit file, if there is one and it lacks the property."""
    file = config.stash.get(junitxml.xml_key, None)
    if file is not None and (name, value) not in file.global_properties:
        file.add_global_property(name, value)


# The debugger


def debug_failure(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Debug a failure, as `--pdb` does; raise `pytest.exit.Exception` if the user quits."""
    debugging.post_mortem(debugging._postmortem_exc_or_tb(excinfo))


def new_pdb(header: str, **options: Any) -> Any:
    """Return a debugger of the class that `--pdbcls` names, and write the header above its prompt."""
    make: Any = debugging.pytestPDB._init_pdb
    return make("", header=header, **options)


def replace_set_trace(set_trace: Callable[..., None]) -> None:
    """Call `set_trace` for `pytest.set_trace()`, for good."""
    pytest.set_trace = debugging.pytestPDB.set_trace = set_trace  # type: ignore[method-assign]


# Log records


@contextmanager
def log_handlers_attached(config: pytest.Config) -> Iterator[None]:
    """Attach pytest's log handlers once around a test to the loggers that do not propagate.

    pytest attaches two handlers to each of them around each phase, and takes logging's lock each time. torch has about
    sixty such loggers, so that costs a trivial test a tenth of its time. Here a phase attaches to the root logger only.
    """
    plugin = config.pluginmanager.get_plugin("logging-plugin")
    handlers: list[logging.Handler] = [plugin.caplog_handler, plugin.report_handler] if plugin else []
    known = list(logging.root.manager.loggerDict.values())  # another thread may add one
    loggers = [logger for logger in known if isinstance(logger, logging.Logger) and not logger.propagate]
    attached = [(each.handlers, handler) for each in loggers for handler in handlers if handler not in each.handlers]
    catching_logs = _pytest.logging.catching_logs

    def catch(handler: logging.Handler, level: int | None = None) -> AbstractContextManager[logging.Handler]:
        return _attached_to_root(handler, level) if handler in handlers else catching_logs(handler, level)

    for of_logger, handler in attached:
        of_logger.append(handler)
    _pytest.logging.catching_logs = catch  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        _pytest.logging.catching_logs = catching_logs  # type: ignore[misc]
        for of_logger, handler in attached:
            if handler in of_logger:  # a test may have removed it
                of_logger.remove(handler)


@contextmanager
def _attached_to_root(handler: logging.Handler, level: int | None) -> Iterator[logging.Handler]:
    root, before = logging.root, logging.root.level
    root.addHandler(handler)
    if level is not None:
        handler.setLevel(level)
        root.setLevel(min(before, level))
    try:
        yield handler
    finally:
        if level is not None:
            root.setLevel(before)
        root.removeHandler(handler)
