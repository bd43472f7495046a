"""A rank's own pytest session: same root, ini, conftest files and options as the controller's.

The controller names a test and a phase; the rank collects the test's file on first demand and runs the phase with
pytest's own machinery, so fixtures, assertion rewriting, skip and xfail work as in any process. Setup answers its
run from inside pytest's protocol for the test and keeps serving there until teardown is done, because the protocol's
wrappers (warnings, assertion rewriting) must enclose all three phases.
"""

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_ddp.coverage import measure_coverage
from pytest_ddp.items import node_id
from pytest_ddp.protocol.messages import Ready, Run
from pytest_ddp.protocol.phases import ItemId, PhaseAnswer, PhaseRequest, When
from pytest_ddp.protocol.session_start import SessionStart
from pytest_ddp.pytest_internals import begin_request, end_request, new_config, tear_down
from pytest_ddp.rank.worker import Answered, Failed, Rank, SkipRun
from pytest_ddp.rank_session.collection import RankCollection
from pytest_ddp.rank_session.debugger import RankDebugger
from pytest_ddp.rank_session.exceptions import Blame, ExceptionNotice
from pytest_ddp.rank_session.isolation import Isolation
from pytest_ddp.rank_session.log_capture import install_fast_log_capture, update_loggers
from pytest_ddp.rank_session.phases import answer_for, answer_not_found, run_phase
from pytest_ddp.rank_session.records import RankRecords
from pytest_ddp.settings import Settings

PLUGIN = "ddp-rank"


def host(body: bytes) -> None:
    """Run a pytest session whose loop serves the controller."""
    start: SessionStart = pickle.loads(body)  # noqa: S301  made by the controller, which we are a part of
    os.chdir(start.cwd)
    with measure_coverage(start.coverage):
        _run_session(start)


def _run_session(start: SessionStart) -> None:
    install_fast_log_capture()
    config = new_config(start.options, start.args)
    config.option.basetemp = str(Path(start.basetemp) / f"ddp-rank{Rank.current.launch.rank}-{os.getpid()}")
    # Many plugins take this attribute of xdist's workers as the word to leave reports and caches to the controller.
    config.workerinput = start.workerinput  # type: ignore[attr-defined]
    plugin = RankPlugin(Rank.current, config, start.settings)
    for marker in start.markers:  # those of plugins that ranks do without are on tests all the same
        config.addinivalue_line("markers", marker)
    config.pluginmanager.register(plugin, PLUGIN)
    config.pluginmanager.register(plugin.state, "ddp-rank-state")
    config.pluginmanager.register(RankDebugger(config, start.terminal), "ddp-rank-debugger")
    config.pluginmanager.register(plugin.collection)
    config.pluginmanager.register(plugin.records)
    config.pluginmanager.register(Blame())
    config.pluginmanager.register(ExceptionNotice(Rank.current))
    config.hook.pytest_cmdline_main(config=config)


def phase(body: bytes) -> bytes:
    """Run one phase of one test (a `PhaseRequest`); return pytest's report, serialised."""
    return RankPlugin.current.phase(PhaseRequest.decode(body))


class RankPlugin:
    """Turns a pytest session into a rank's."""

    current: "RankPlugin"

    def __init__(self, rank: Rank, config: pytest.Config, settings: Settings) -> None:
        RankPlugin.current = self
        self.rank = rank
        self.config = config
        self.state = Isolation(settings)
        self.collection = RankCollection()
        self.records = RankRecords()
        self._collected: dict[str, dict[str, pytest.Item]] = {}
        self._troubles: dict[str, pytest.CollectReport | None] = {}
        self._item: pytest.Item | None = None
        self._request: PhaseRequest | None = None
        self._torn_down: tuple[PhaseAnswer | Failed | SkipRun, bytes] | None = None
        self._setup: str | None = None
        self._ending: tuple[Run, PhaseAnswer | Failed | SkipRun] | None = None

    def pytest_collection(self, session: pytest.Session) -> bool:
        """Collect nothing: tests are collected when they are asked for."""
        self._session = session
        return True

    def pytest_runtestloop(self) -> bool:
        """Serve the controller instead of running tests."""
        self.rank.send(Ready())
        self.rank.serve()
        return True

    @property
    def item(self) -> Any:
        """The test at hand."""
        if self._item is None:
            raise RuntimeError("no test is being run")
        return self._item

    def phase(self, request: PhaseRequest) -> bytes:
        """Run one phase; raise what tells the controller about a failure."""
        update_loggers()
        if request.when == "setup":
            self._protocol(request)
        if self._item is None:
            return self._end_after_all(request)
        if request.when == "teardown":
            self._end(request)
        return self._report(request.when).encode()

    def _protocol(self, request: PhaseRequest) -> None:
        self._request, self._setup, self._torn_down = request, None, None
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
        """Run setup, answer, and run or serve the other phases from here."""
        begin_request(item)
        self._item = item
        try:
            if self._answer_setup():
                self._end_at_once()
            self.rank.serve(until=lambda: self._item is None)
        finally:
            self._item = None
            end_request(item)
        return True

    def _answer_setup(self) -> bool:
        """Run setup, and the call if that is asked for; answer, and return whether to go on at once."""
        asked = self._request
        try:
            answer = self._report("setup")
            if asked and asked.with_call:
                self._setup = answer.encode().decode()
                answer = self._report("call")
                answer = replace(answer, goes_on=asked.with_teardown and self.state.is_as_before)
            self.rank.answer("returned", body=answer.encode())
        except Failed as failed:
            self.rank.answer_failed(failed)
        except SkipRun as skip:
            self.rank.answer("skipped", message=str(skip), body=skip.body)
        else:
            return answer.goes_on
        return False

    def _end_at_once(self) -> None:
        """Run teardown without being asked again; its answer is the second one to the run at hand."""
        if self.rank.run is not None and self._request is not None:
            self._tear_down(replace(self.rank.run, number=self.rank.run.number + 1), self._request.following)

    def _end(self, request: PhaseRequest) -> NoReturn:
        """Run teardown, but leave the answer to when the protocol has ended: only then its warnings are known."""
        if self.rank.run is not None:
            self._tear_down(self.rank.run, request.following)
        raise Answered

    def _tear_down(self, run: Run, following: ItemId | None) -> None:
        answer: PhaseAnswer | Failed | SkipRun
        try:
            answer = self._report("teardown", nextitem=self._upcoming(following))
        except (Failed, SkipRun) as other:
            answer = other
        self._ending, self._item = (run, answer), None

    def _end_after_all(self, request: PhaseRequest) -> bytes:
        """Answer for a teardown that is over: other ranks failed, and now different fixtures may have to end.

        A test that never got as far as its protocol has nothing left to do.
        """
        if request.when != "teardown" or self._torn_down is None:
            return b""
        tear_down(self._session, self._upcoming(request.following))
        self._send_teardown(*self._torn_down, self.rank.run)
        raise Answered

    def _answer_teardown(self) -> None:
        if self._ending is None:
            return
        (run, answer), self._ending = self._ending, None
        given, recorded = self.records.take_warnings(), self.records.take_suite_properties()
        plain = answer if isinstance(answer, PhaseAnswer) else PhaseAnswer.decode(answer.body)
        body = replace(plain, warnings=given, suite_properties=recorded, retire=self.state.retire).encode()
        self._torn_down = answer, body
        self._send_teardown(answer, body, run)

    def _send_teardown(self, answer: PhaseAnswer | Failed | SkipRun, body: bytes, run: Run | None) -> None:
        if isinstance(answer, Failed):
            self.rank.answer_failed(Failed(answer.kind, answer.message, answer.text, body), run)
        elif isinstance(answer, SkipRun):
            self.rank.answer("skipped", message=str(answer), body=body, run=run)
        else:
            self.rank.answer("returned", body=body, run=run)

    def _report(self, when: When, **arguments: Any) -> PhaseAnswer:
        """Run a phase of the current item with pytest's own functions."""
        report = run_phase(self.item, when, **arguments)
        setup, self._setup = self._setup, None
        return answer_for(self.config, report, self.records.take_subtests(), setup)

    def _upcoming(self, test: ItemId | None) -> pytest.Item | None:
        """Return the test that comes next; one that is not found here will say so when its own turn comes."""
        try:
            return self._find(test) if test else None
        except (LookupError, Failed, SkipRun):
            return None

    def _find(self, test: ItemId) -> pytest.Item:
        if test.path not in self._collected:
            items = self.collection.collect(Path(test.path), self._session)
            self._collected[test.path] = {node_id(item): item for item in items}
            self._troubles[test.path] = self.collection.trouble
        found = self._collected[test.path].get(test.nodeid)
        if found is None:
            answer_not_found(self.config, test, self._troubles[test.path])
        return found
