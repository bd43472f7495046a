"""A rank's own pytest session: same root, ini, conftest files and options as the controller's.

The controller sends `RunTest`; the rank collects the test's file the first time, and runs pytest's protocol for the
test. It answers after setup and waits, inside the protocol, for `Proceed` to the call and to teardown, so that pytest's
wrappers around the protocol (warnings, assertion rewriting) enclose all three phases.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_ddp.adopted.on_rank import AdoptedTests
from pytest_ddp.coverage import measure_coverage
from pytest_ddp.items import node_id
from pytest_ddp.protocol.messages import Answer, Run
from pytest_ddp.protocol.phases import ItemId, Proceed, RunTest, SessionStart, When
from pytest_ddp.pytest_internals import (
    begin_request,
    end_request,
    import_default_plugins,
    log_handlers_attached,
    new_config,
    tear_down,
)
from pytest_ddp.rank.worker import Answered, Failed, Rank, SkipRun
from pytest_ddp.rank_session.collection import RankCollection
from pytest_ddp.rank_session.debugger import RankDebugger
from pytest_ddp.rank_session.isolation import Isolation, hold_back_tear_down
from pytest_ddp.rank_session.phases import (
    ExceptionHooks,
    answer_for,
    raise_not_found,
    run_phase,
)
from pytest_ddp.rank_session.records import RankRecords, taken
from pytest_ddp.settings import Settings

PLUGIN = "ddp-rank"
# The fork server imports this module, and with it all that a session of pytest needs, once for all ranks.
import_default_plugins()


def host(body: bytes) -> None:
    """Run a pytest session whose loop serves the controller."""
    start = SessionStart.decode(body)
    os.chdir(start.cwd)
    with measure_coverage(start.coverage):
        run_session(start, RankPlugin)


def run_session(start: SessionStart, make_plugin: Callable[[Rank, pytest.Config, Settings], "RankPlugin"]) -> None:
    """Run a session with the hooks of `make_plugin`."""
    config = new_config(start.options, start.args)
    Path(start.basetemp).mkdir(mode=0o700, parents=True, exist_ok=True)  # another node has not made it
    config.option.basetemp = str(Path(start.basetemp) / f"ddp-rank{Rank.current.launch.rank}-{os.getpid()}")
    # Many plugins write no reports and caches in a process that has this attribute of xdist's workers.
    config.workerinput = start.workerinput  # type: ignore[attr-defined]
    plugin = make_plugin(Rank.current, config, start.settings)
    for marker in start.markers:  # also those of plugins that ranks do not load
        config.addinivalue_line("markers", marker)
    config.pluginmanager.register(plugin, PLUGIN)
    config.pluginmanager.register(plugin.state, "ddp-rank-state")
    for hooks in plugin.more_hooks(start):
        config.pluginmanager.register(hooks)
    config.hook.pytest_cmdline_main(config=config)


def run_test(body: bytes) -> bytes:
    """Set up the test that a `RunTest` names, answer, and serve the test's other phases until it is torn down."""
    return RankPlugin.current.run_test(RunTest.decode(body))


def proceed(body: bytes) -> bytes:
    """Run the next phase of the test at hand (a `Proceed`); return pytest's report, serialised."""
    return RankPlugin.current.proceed(Proceed.decode(body))


class RankPlugin:
    """Turns a pytest session into a rank's."""

    current: "RankPlugin"

    def __init__(self, rank: Rank, config: pytest.Config, settings: Settings) -> None:
        RankPlugin.current = self
        self.rank = rank
        self.config = config
        self.collection = RankCollection()
        self.records = RankRecords()
        self.state = self.new_state(settings)
        self._collected: dict[str, dict[str, pytest.Item]] = {}
        self._failures: dict[str, pytest.CollectReport | None] = {}
        self._item: pytest.Item | None = None
        self._ending: tuple[Run | None, Callable[..., bytes]] | None = None

    def new_state(self, settings: Settings) -> Isolation:
        """Return the hooks that give each test the same state."""
        return Isolation(settings)

    def more_hooks(self, start: SessionStart) -> list[object]:
        """Return the other plugins of the session."""
        debugger = RankDebugger(start.settings.pdb_rank, start.terminal)
        return [debugger, self.collection, self.records, ExceptionHooks(), AdoptedTests(self.state.context)]

    def on_ranks(self, function: Callable[[], bytes], **_simulation: Any) -> bytes:
        """Call a function on each rank of this process; return what answers the run. Here the process is the rank."""
        return function()

    def shown(self, error: BaseException) -> BaseException:
        """Return the exception that the report of a rank shows for one that was raised there."""
        return error

    def pytest_collection(self, session: pytest.Session) -> bool:
        """Collect nothing: each test is collected when the controller asks for it."""
        self._session = session
        return True

    def pytest_runtestloop(self) -> bool:
        """Serve the controller instead of running tests."""
        self.rank.send(Answer(-1, "returned"))
        self.rank.serve()
        return True

    @property
    def item(self) -> Any:
        """The test at hand."""
        if self._item is None:
            raise RuntimeError("no test is being run")
        return self._item

    def run_test(self, request: RunTest) -> NoReturn:
        """Run pytest's protocol for a test; every phase answers a run of its own."""
        item = self._find(request.test)
        tear_down(self._session, item)  # another test may have been announced
        self.state.start_test(item, request.shared_path)
        try:
            item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        finally:
            self._answer_teardown()
        raise Answered

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        """Run setup, answer, and serve the other phases from here."""
        self._item = item
        try:
            with log_handlers_attached(self.config):
                self.rank.answer_with(self.set_up)
                self.rank.serve(until=lambda: self._item is None)
        finally:
            self._item = None
            end_request(item)
        return True

    def set_up(self) -> bytes:
        """Set the test up."""
        begin_request(self.item)
        return self.report("setup")

    def proceed(self, request: Proceed) -> bytes:
        """Run the call or teardown; raise what tells the controller about a failure."""
        if self._item is None:  # a test that was not found here has nothing to tear down
            return b""
        if request.phase == "call":
            return self.on_ranks(self._call, schedule=request.schedule, faults=request.faults)
        # The teardown is answered when pytest's protocol has ended, because only then all warnings are known.
        try:
            self._ending = self.rank.run, self.tear_down(self._find_next(request.next_test))
        finally:
            self._item = None
        raise Answered

    def _call(self) -> bytes:
        hold_back_tear_down(self.item)
        return self.report("call")

    def tear_down(self, upcoming: pytest.Item | None) -> Callable[..., bytes]:
        """Tear the test down; return a function that answers, with what is left of the test as keywords."""
        return partial(self.answer, run_phase(self.item, "teardown", nextitem=upcoming))

    def _answer_teardown(self) -> None:
        """Answer the teardown, with the warnings and properties of the whole test."""
        if self._ending is None:
            return
        (run, answer), self._ending = self._ending, None
        warnings, properties = taken(self.records.warnings), taken(self.records.suite_properties)
        left = {"warnings": warnings, "suite_properties": properties, "retire": self.state.retire}
        self.rank.answer_with(partial(answer, **left), run)

    def report(self, when: When) -> bytes:
        """Run a phase of the test at hand with pytest's own functions; return the answer."""
        return self.answer(run_phase(self.item, when))

    def answer(self, report: pytest.TestReport, **left: Any) -> bytes:
        """Return the answer for a phase, or raise what tells the controller about a failure."""
        return answer_for(self.config, report, taken(self.records.subtests), **left).encode()

    def _find_next(self, test: ItemId | None) -> pytest.Item | None:
        """Return the test that comes next; a test that is not found here fails when it is run."""
        try:
            return self._find(test) if test else None
        except (LookupError, Failed, SkipRun):
            return None

    def _find(self, test: ItemId) -> pytest.Item:
        if test.path not in self._collected:
            items, self._failures[test.path] = self.collection.collect(Path(test.path), self._session)
            self._collected[test.path] = {node_id(item): item for item in items}
        found = self._collected[test.path].get(test.nodeid)
        if found is None:
            raise_not_found(self.config, test, self._failures[test.path])
        return found
