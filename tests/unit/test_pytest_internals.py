"""pytest's private names are still there, and do what `pytest_ddp.pytest_internals` needs of them.

A check is named as the function of the adapter that it calls. Its docstring names what is private and what breaks
without it.
"""

import io
import logging
import os
import sys
import warnings
from inspect import getmembers, isfunction
from xml.etree import ElementTree as ET

import pytest
from _pytest._io import TerminalWriter
from _pytest.assertion.rewrite import assertstate_key
from _pytest.debugging import pytestPDB
from _pytest.fixtures import FixtureFunctionDefinition as FixtureFunction

import pytest_ddp.controller.session  # noqa: F401  pytester forgets what an inner run imports
from pytest_ddp import pytest_internals as internals

TWO_TESTS = """
import pytest

@pytest.fixture(scope="module")
def wide():
    ended = []
    yield ended
    ended.append(True)

@pytest.mark.parametrize("size", [10, 20])
def test_it(wide, size, tmp_path): print("output")
"""


# The configuration and the session


def AS_PYTEST():  # noqa: N802  as in the adapter
    """The keyword `_ispytest`: the decorator `distributed` gives a deprecation warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = pytest.MarkDecorator(pytest.mark.distributed(world_size=2).mark, **internals.AS_PYTEST)
    assert made.kwargs == {"world_size": 2}


def new_config(pytester):
    """Config.fromdictargs: ranks cannot start a pytest with the controller's options."""
    config = internals.new_config({"ddp_seed": 7}, [f"--rootdir={pytester.path}", "--capture=no"])
    assert (config.option.ddp_seed, config.rootpath, config.option.capture) == (7, pytester.path, "no")
    config._ensure_unconfigure()


def import_default_plugins(monkeypatch):
    """_pytest.config.default_plugins: the fork server does not import pytest's plugins, and each rank does."""
    monkeypatch.delitem(sys.modules, "_pytest.pastebin")
    internals.import_default_plugins()
    assert "_pytest.pastebin" in sys.modules


def base_temp(request, tmp_path_factory):
    """Config._tmp_path_factory: ranks have no folder for `tmp_path`, nor one that they share."""
    assert internals.base_temp(request.config) == tmp_path_factory.getbasetemp()


def without_capture(request):
    """CaptureManager.suspend_global_capture: the debugger of a rank gets no terminal."""
    captured = os.fstat(1)
    with internals.without_capture(request.config):
        assert os.path.samestat(captured, os.fstat(1)) == (request.config.option.capture != "fd")
    assert os.path.samestat(captured, os.fstat(1))


def pending_conftests(pytester):
    """FixtureManager._pending_conftests: fixtures of conftest files are lost where ranks collect file by file."""
    folder = pytester.mkdir("folder")
    (folder / "conftest.py").write_text("")
    session = pytest.Session.from_config(pytester.parseconfig("folder"))
    session.config._do_configure()
    session.config.hook.pytest_sessionstart(session=session)
    assert list(internals.pending_conftests(session)) == [folder]


def rewrite_assertions_of(pytester):
    """assertstate_key: a failed assertion in a file of an unusual name shows no values on ranks."""
    file = pytester.makepyfile(unusual="def test_it(): assert 0 == 1")
    session = pytest.Session.from_config(pytester.parseconfig(file))
    state = session.config.stash[assertstate_key]
    session._initialpaths = frozenset({file})
    assert not state.hook._should_rewrite("unusual", str(file), state)
    internals.rewrite_assertions_of(session)
    assert state.hook._should_rewrite("unusual", str(file), state)


# The phases of a test


def begin_request(pytester):
    """Function._initrequest: ranks cannot set up the fixtures of a test."""
    item = pytester.getitems(TWO_TESTS)[0]
    internals.begin_request(item)
    internals.call_and_report(item, "setup", log=False)
    assert {"size", "tmp_path", "wide"} <= item.funcargs.keys()
    internals.tear_down(item.session, None)


def end_request(pytester):
    """Function._request: the fixture values of a test are not freed when it ends, and look like leaks."""
    item = pytester.getitems(TWO_TESTS)[0]
    assert isinstance(item._request, pytest.FixtureRequest)
    internals.end_request(item)
    assert (item._request, item.funcargs) == (False, None)


def replaced_request(pytester):
    """Function._request: Hypothesis's plugin makes fixtures of ranks in the controller."""
    item = pytester.getitems(TWO_TESTS)[0]
    before = item._request
    with internals.replaced_request(item, "another"):
        assert item._request == "another"
    assert item._request is before


def SetUpState(pytester):  # noqa: N802  as in the adapter
    """Session._setupstate, FixtureDef._finalizers, CaptureManager._capture_fixture: simulated ranks share fixtures."""
    item = pytester.getitem("import pytest\n@pytest.fixture\ndef one(): ...\ndef test_it(one): ...", "test_it")
    session, attributes, definition = item.session, vars(item), item._fixtureinfo.name2fixturedefs["one"][0]
    capture, handler = (
        item.config.pluginmanager.getplugin("capturemanager"),
        item.config.pluginmanager.getplugin("logging-plugin").caplog_handler,
    )
    state, setup, values = internals.SetUpState(session), session._setupstate, {definition: None}
    definition.cached_result, finalizers = (1, None, None), definition._finalizers
    capture._capture_fixture, records = "mine", handler.records
    state.begin(item)

    state.swap(session, item, values)
    assert session._setupstate is not setup
    assert item.stash is not attributes["stash"]
    assert (definition.cached_result, capture._capture_fixture, values) == (None, None, {})
    assert not state._setup.stack
    assert not state.has_set_up

    state.swap(session, item, values)
    assert (session._setupstate, vars(item), values) == (setup, attributes, {definition: None})
    assert definition._finalizers is finalizers
    assert (definition.cached_result, capture._capture_fixture) == ((1, None, None), "mine")
    assert handler.records is records
    definition.cached_result = capture._capture_fixture = None


def call_and_report(pytester):
    """_pytest.runner.call_and_report: ranks cannot run a phase of a test and report it."""
    item = pytester.getitem("def test_func(): assert not 1")
    phases = [internals.call_and_report(item, when, log=False) for when in ("setup", "call")]
    phases.append(internals.call_and_report(item, "teardown", log=False, nextitem=None))
    assert [(report.when, report.outcome) for report in phases] == [
        ("setup", "passed"),
        ("call", "failed"),
        ("teardown", "passed"),
    ]


def tear_down(pytester):
    """SetupState.teardown_exact: ranks finish fixtures of wider scope too early or never."""
    first, second = pytester.getitems(TWO_TESTS)
    internals.call_and_report(first, "setup", log=False)
    ended = first.funcargs["wide"]
    internals.tear_down(first.session, second)
    assert not ended
    internals.tear_down(first.session, None)
    assert ended


def has_set_up(pytester):
    """SetupState.stack: an interrupted run loses its ranks before they have torn down."""
    item = pytester.getitems(TWO_TESTS)[0]
    assert not internals.has_set_up(item.session)
    internals.call_and_report(item, "setup", log=False)
    assert internals.has_set_up(item.session)
    internals.tear_down(item.session, None)
    assert not internals.has_set_up(item.session)


def Skipped():  # noqa: N802  as in the adapter
    """_pytest.outcomes.Skipped: Hypothesis takes an example that all ranks skip for a failure."""
    assert internals.Skipped is pytest.skip.Exception


# Fixtures and parameters


def fixture_definitions(pytester):
    """FuncFixtureInfo.name2fixturedefs: `@distributed` fixtures are not found."""
    found = internals.fixture_definitions(pytester.getitems(TWO_TESTS)[0])
    assert {name: definitions[-1].scope for name, definitions in found.items()} == {
        "wide": "module",
        "size": "function",
        "tmp_path": "function",
        "tmp_path_factory": "session",
    }


def argument_names(pytester):
    """FuncFixtureInfo.argnames: Hypothesis tests cannot be called in the controller."""
    assert internals.argument_names(pytester.getitems(TWO_TESTS)[0]) == ("wide", "size", "tmp_path")


def parameters(pytester):
    """CallSpec2.params: a test does not run once for each world size."""
    first, second = pytester.getitems(TWO_TESTS)
    found = [internals.parameters(node) for node in (first, second, first.parent)]
    assert found == [{"size": 10}, {"size": 20}, {}]


def parameter_index(pytester):
    """SubRequest.param_index: fixtures with different parameters get the same seed."""

    class Recorder:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def pytest_fixture_setup(self, request: pytest.FixtureRequest) -> None:
            self.seen.append(internals.parameter_index(request))

    recorder = Recorder()
    pytester.makepyfile("""
        import pytest
        @pytest.fixture(params="ab")
        def lettered(request): ...
        def test_it(lettered): ...
        def test_without(doctest_namespace): ...
    """)
    pytester.inline_run("-p", "no:doctest", "-p", "doctest", plugins=[recorder])
    assert recorder.seen == [0, 1, 0]


def FixtureFunctionDefinition():  # noqa: N802  as in the adapter
    """_pytest.fixtures.FixtureFunctionDefinition: `@distributed` refuses fixtures."""
    assert isinstance(pytest.fixture(lambda: None), internals.FixtureFunctionDefinition)


def decorated_function():
    """FixtureFunctionDefinition._get_wrapped_function: `@distributed` fixtures are not found."""

    def function() -> None: ...

    assert internals.decorated_function(pytest.fixture(function)) is function


def set_fixture_value(pytester):
    """FixtureDef.cached_result: ranks of an adopted test have different folders as `tmp_path`."""

    class Setting:
        def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef, request: pytest.FixtureRequest) -> object:
            return internals.set_fixture_value(fixturedef, request, 3) if fixturedef.argname == "number" else None

    pytester.makepyfile("""
        import pytest
        @pytest.fixture
        def number(): assert False
        def test_it(number, request): assert number == request.getfixturevalue("number") == 3
    """)
    pytester.inline_run(plugins=[Setting()]).assertoutcome(passed=1)


def keep_failure(pytester):
    """FixtureDef.cached_result: a plain test that asks twice for a fixture of ranks is not told why it fails."""

    class Refusing:
        refused = 0

        def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef, request: pytest.FixtureRequest) -> None:
            self.refused += 1
            error = RuntimeError("refused")
            internals.keep_failure(fixturedef, request, error)
            raise error

    refusing = Refusing()
    pytester.makepyfile("""
        import pytest
        @pytest.fixture(scope="module")
        def wide(): ...
        def test_one(wide): ...
        def test_two(wide): ...
    """)
    pytester.inline_run(plugins=[refusing]).assertoutcome(failed=2)
    assert refusing.refused == 1


# Reports


class Recorder:
    """Calls a function with each report, and keeps what it returns."""

    def __init__(self, function) -> None:
        self.function = function
        self.seen: list[object] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report):
        self.seen.append(self.function(report))


def _text(text):
    return internals.ReprTraceback([internals.ReprEntry([text], None, None, None, "long")], None, "long")


def _printed(longrepr):
    writer = io.StringIO()
    longrepr.toterminal(TerminalWriter(writer))
    return writer.getvalue()


def ExceptionRepr(pytester):  # noqa: N802  as in the adapter
    """_pytest._code.code.ExceptionRepr: the failure of a rank loses its traceback, or the ranks before it."""
    item = pytester.getitem("def test_func(): assert not 1")
    internals.call_and_report(item, "setup", log=False)
    longrepr = internals.call_and_report(item, "call", log=False).longrepr
    internals.tear_down(item.session, None)
    assert isinstance(longrepr, internals.ExceptionRepr)
    longrepr.reprtraceback.reprentries.insert(0, internals.ReprEntry(["headline"], None, None, None, "long"))
    assert longrepr.reprtraceback.reprentries[-1].style == "long"
    longrepr.reprtraceback.reprentries[-1].lines.append("E       a note")
    longrepr.addsection("rank 1", "its failure")
    shown = _printed(longrepr)
    places = [shown.index(text) for text in ("headline", "assert not 1", "a note", "rank 1", "its failure")]
    assert places == sorted(places)


def ExceptionChainRepr():  # noqa: N802  as in the adapter
    """_pytest._code.code.ExceptionChainRepr: of several failing examples only one is shown."""
    crash = internals.ReprFileLocation("test_it.py", 3, "the crash")
    chain = internals.ExceptionChainRepr([(_text("first"), None, "a sentence"), (_text("second"), crash, None)])
    assert chain.reprcrash is crash
    assert chain.chain[0][0].reprentries[0].lines == ["first"]
    assert _printed(chain).split() == ["first", "a", "sentence", "second"]


def ReprExceptionInfo():  # noqa: N802  as in the adapter
    """_pytest._code.code.ReprExceptionInfo: a lost rank has no report."""
    crash = internals.ReprFileLocation("test_it.py", 3, "the crash")
    info = internals.ReprExceptionInfo(reprcrash=crash, reprtraceback=_text("headline"))
    assert (info.reprcrash.message, _printed(info).split()) == ("the crash", ["headline"])


ReprEntry = ReprTraceback = ReprFileLocation = ReprExceptionInfo  # the parts of which the check makes one


def SUBTEST_CONTEXT(pytester):  # noqa: N802  as in the adapter
    """SubtestReport._to_json: subtests with different parameters are taken for one."""
    recorder = Recorder(lambda report: report._to_json().get(internals.SUBTEST_CONTEXT))
    pytester.makepyfile("""
        def test_it(subtests):
            with subtests.test("named", letter="a"): pass
    """)
    pytester.inline_run(plugins=[recorder])
    assert [str(context) for context in recorder.seen if context] == ["{'msg': 'named', 'kwargs': {'letter': \"'a'\"}}"]


def hide_from_summary(pytester):
    """TestReport._pdbshown: what `--pdb` has shown is shown a second time."""
    pytester.makepyfile("def test_it(): assert not 1")
    assert "= FAILURES =" in pytester.runpytest_inprocess().stdout.str()
    hidden = pytester.runpytest_inprocess(plugins=[Recorder(internals.hide_from_summary)])
    hidden.assert_outcomes(failed=1)
    assert "= FAILURES =" not in hidden.stdout.str()


def drop_captured(pytester):
    """Item._report_sections: an example's report shows the output of the examples before it."""
    item = pytester.getitem("def test_func(): ...")
    for when in ("setup", "call"):
        item.add_report_section(when, "stdout", f"output of {when}")
    internals.drop_captured(item, "call")
    report = pytest.TestReport.from_item_and_call(item, pytest.CallInfo.from_call(lambda: None, "call"))
    assert report.sections == [("Captured stdout setup", "output of setup")]


def check_property_name():
    """_pytest.junitxml._check_record_param_type: ranks accept names of properties that the JUnit file cannot have."""
    internals.check_property_name("name")
    with pytest.raises(TypeError, match="name parameter needs to be a string, but int given"):
        internals.check_property_name(3)


def add_suite_property(pytester):
    """_pytest.junitxml.xml_key: properties that ranks record do not get into the JUnit file."""

    class Recording:
        def pytest_runtest_setup(self, item: pytest.Item) -> None:
            for value in ("1", "1", "2"):
                internals.add_suite_property(item.config, "name", value)

    pytester.makepyfile("def test_it(): ...")
    pytester.inline_run(plugins=[Recording()]).assertoutcome(passed=1)  # without a file
    pytester.inline_run("--junitxml=junit.xml", plugins=[Recording()])
    properties = ET.parse(pytester.path / "junit.xml").iter("property")  # noqa: S314  pytest wrote it
    assert [(one.get("name"), one.get("value")) for one in properties] == [("name", "1"), ("name", "2")]


# The debugger


def _debugged(pytester, statement, typed):
    pytester.makepyfile(f"""
        import pytest
        from pytest_ddp import pytest_internals as internals
        def test_it():
            found = 40 + 2
            try: raise RuntimeError
            except RuntimeError: error = pytest.ExceptionInfo.from_current()
            {statement}
    """)
    return pytester.run(sys.executable, "-m", "pytest", "-q", stdin=typed).stdout.str()


def debug_failure(pytester):
    """_pytest.debugging.post_mortem: `--pdb` does not debug the failure of a rank."""
    shown = _debugged(pytester, "internals.debug_failure(error)", b"p found\nq\n")
    assert "42" in shown
    assert "Quitting debugger" in shown


def new_pdb(pytester):
    """pytestPDB._init_pdb: `breakpoint()` on a rank does not begin a debugger."""
    shown = _debugged(pytester, "internals.new_pdb('the header').set_trace()", b"p found\nc\n")
    assert "> the header >" in shown
    assert "42" in shown
    assert "1 passed" in shown


def replace_set_trace(monkeypatch):
    """pytestPDB.set_trace: `breakpoint()` on a rank asks for a terminal that the rank does not have."""
    monkeypatch.setattr(pytest, "set_trace", pytest.set_trace)
    monkeypatch.setattr(pytestPDB, "set_trace", pytestPDB.set_trace)
    called: list[str] = []
    internals.replace_set_trace(lambda: called.append("here"))
    pytest.set_trace()
    pytestPDB.set_trace()
    assert called == ["here", "here"]


# Log records


def log_handlers_attached(pytester):
    """catching_logs, caplog_handler, report_handler: pytest spends a tenth of a short test on attaching handlers."""
    added = []

    class Counted(list[logging.Handler]):
        def append(self, handler):
            added.append(handler)
            super().append(handler)

    class Plugin:
        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_protocol(self, item):
            with internals.log_handlers_attached(item.config):
                return (yield)

    apart = logging.getLogger(__name__)
    apart.propagate, apart.handlers = False, Counted()
    pytester.makepyfile(
        f"""
        import logging

        def test_it(caplog):
            logging.getLogger({__name__!r}).warning("apart")
            logging.warning("root")
            assert caplog.messages == ["apart", "root"]
        """
    )
    added.clear()
    pytester.inline_run(plugins=[Plugin()]).assertoutcome(passed=1)
    apart.propagate, apart.handlers = True, []
    assert [type(handler).__name__ for handler in added].count("LogCaptureHandler") == 2


_attached_to_root = log_handlers_attached

FUNCTIONS = [name for name, member in getmembers(internals, isfunction) if member.__module__ == internals.__name__]
NAMES = sorted({*FUNCTIONS, "SetUpState", *internals.__all__})
CHECKS = {globals()[name].__name__: globals()[name] for name in NAMES if name in globals()}  # one may be for several


def test_every_name_of_the_adapter_has_a_check():
    assert [name for name in NAMES if name not in globals()] == []


@pytest.mark.parametrize("name", CHECKS)
def test_pytest_still_has(name, still_works):
    still_works("pytest", internals, CHECKS[name])


def test_a_name_that_is_gone_is_reported_with_what_breaks_and_where_to_mend_it(still_works, monkeypatch):
    monkeypatch.delattr(FixtureFunction, "_get_wrapped_function")
    with pytest.raises(AssertionError) as raised:
        still_works("pytest", internals, decorated_function)
    assert str(raised.value) == (
        f"pytest {pytest.__version__} has changed FixtureFunctionDefinition._get_wrapped_function: "
        "`@distributed` fixtures are not found. Mend pytest_ddp.pytest_internals.decorated_function."
    )
