"""The controller's side of distributed tests: hooks of the process that runs pytest."""

import itertools
import os
import sys
from collections.abc import Generator
from contextlib import nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pytest

from pytest_ddp.controller.debugger import GROUP_SECONDS, debugger_for
from pytest_ddp.controller.group_scope import GroupScopes
from pytest_ddp.controller.job import job_key
from pytest_ddp.controller.phase_runner import PhaseRunner, bugs_key, result_key, taken_over_key, world_key
from pytest_ddp.controller.planner import Planner
from pytest_ddp.controller.rank_pools import RankPools
from pytest_ddp.given.failures import report_bugs
from pytest_ddp.given.items import fixtures_stay_on_ranks
from pytest_ddp.items import is_adopted, is_distributed, mentions_distributed, node_id, rank_fixtures
from pytest_ddp.marker import FIXTURE_OPTIONS
from pytest_ddp.outcomes.failure import failures
from pytest_ddp.pool.group import GROUP_TIMEOUT_MARGIN
from pytest_ddp.pytest_internals import base_temp, has_set_up, keep_failure, log_handlers_attached
from pytest_ddp.reporting.exception_info import root_exception
from pytest_ddp.reporting.forwarding import forward_subtests, forward_suite_properties, forward_warnings
from pytest_ddp.reporting.merge import merge, output_sections
from pytest_ddp.reporting.run_summary import Summary
from pytest_ddp.seeds import seed_section
from pytest_ddp.settings import Settings

PLUGIN = "ddp-controller"
_LATE_MARKER = (
    "the marker `distributed` was added after the tests had been collected, too late to run this test on ranks: add it "
    "in pytest_collection_modifyitems or earlier"
)
_sections = pytest.StashKey[list[tuple[str, str]]]()


class Controller:
    """Starts no process before a module mentions distributed tests, and imports no torch before a test needs it."""

    def __init__(self, config: pytest.Config, settings: Settings, summary: Summary) -> None:
        self.config = config
        self.settings = settings
        debugger = debugger_for(config, settings)
        job = config.stash.get(job_key, None)
        self.planner = Planner(settings, job.nodes if job else ())
        margin = GROUP_SECONDS if debugger else GROUP_TIMEOUT_MARGIN
        self.pools = RankPools(config, settings, summary, margin, job)
        self.scopes = GroupScopes(self.pools)
        self.runner = PhaseRunner(self.planner, self.scopes, self._new_shared_path, debugger)
        self._numbers = itertools.count()

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path) -> None:
        """Begin to start the fork server while a module of distributed tests is imported: both of them import torch."""
        if self._forks and mentions_distributed(module_path, self.settings.adopt):
            self.pools.preload()

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Let the phases of a distributed test happen on ranks instead of here; refuse ranks' fixtures to any other."""
        if self._plans:
            return
        if is_distributed(item):
            self._take_over(item)
        elif fixtures := rank_fixtures(item):
            item.setup = partial(_refuse, fixtures[0], item.name)  # type: ignore[method-assign]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Take over the tests whose marker a plugin or a conftest file has just added."""
        for item in items:
            if is_distributed(item) and taken_over_key not in item.stash and not self._plans:
                self._take_over(item)

    def _take_over(self, item: pytest.Item) -> None:
        if self._forks:
            self.pools.preload()
        self.runner.take_over(item)

    @cached_property
    def _forks(self) -> bool:
        """Whether tests are to run, and where ranks can be forked."""
        collects = self.config.getoption("collectonly", default=False)
        return sys.platform == "linux" and not collects and not self._plans

    @cached_property
    def _plans(self) -> bool:
        """Whether tests are only to be listed, with the fixtures that each would have."""
        return bool(self.config.getoption("setupplan", default=False))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, object]:
        """Remember the next test: it decides which fixtures the ranks keep."""
        self.runner.next_item = nextitem
        item.stash[_sections] = []
        with log_handlers_attached(self.config) if is_distributed(item) else nullcontext():
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> None:
        """Refuse a fixture that lives on ranks where a test that does not asks for it while it runs."""
        if not hasattr(fixturedef.func, FIXTURE_OPTIONS) or self._plans:
            return
        try:
            _refuse(fixturedef, "this test")
        except pytest.fail.Exception as refusal:  # without a result, pytest could not be asked for it a second time
            keep_failure(fixturedef, request, refusal)
            raise

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Refuse a test that became distributed too late; keep Hypothesis's plugin from setting up fixtures here."""
        __tracebackhide__ = True
        if is_distributed(item) and taken_over_key not in item.stash and not self._plans:
            pytest.fail(_LATE_MARKER, pytrace=False)
        with fixtures_stay_on_ranks(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Replace pytest's report of a phase, which saw our round trip only, by that of the ranks.

        An exception that another plugin raised around the round trip stands, unless the ranks failed too. Otherwise
        all plugins see an exception like the one that was raised on a rank.
        """
        if not is_distributed(item):
            return (yield)
        raised, result = call.excinfo is not None, item.stash.get(result_key, None)
        if result is not None and not (raised or self.runner.debugger):
            call.excinfo = root_exception(result)
        report = yield
        self._complete(item, report, raised=raised)
        return report

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Let the ranks finish inside the wrappers of other plugins: pytest-cov's collects what the ranks measured.

        What an interrupted run has left set up is torn down in pytest_sessionfinish, and may need its ranks for that.
        """
        try:
            return (yield)
        finally:
            if not has_set_up(session):
                self.close()

    @pytest.hookimpl(trylast=True)
    def close(self) -> None:
        """Let the ranks finish."""
        self.runner.close()
        self.pools.close()

    pytest_sessionfinish = pytest_unconfigure = close  # a session may never finish

    def _complete(self, item: pytest.Item, report: pytest.TestReport, *, raised: bool) -> None:
        sections = item.stash.setdefault(_sections, [])
        vars(report)["ddp_world"] = str(item.stash.get(world_key, ""))  # travels with the report, from xdist's too
        result = item.stash.get(result_key, None)
        if result is not None:
            del item.stash[result_key]
            if (bugs := item.stash.get(bugs_key, None)) and report.when == "call":
                report_bugs(report, bugs, self.config)
            elif failures(result.outcomes) or not raised:
                merge(report, result, self.config)
            sections += output_sections(result, report.when)
            forward_subtests(item, result)
            forward_warnings(self.config, result)
            forward_suite_properties(self.config, result)
            if report.failed:
                sections.append(seed_section(self.settings.seed, node_id(item), alike=is_adopted(item)))
        report.sections = [*report.sections, *sections]

    def _new_shared_path(self) -> str:
        return f"{base_temp(self.config)}{os.sep}ddp-shared{next(self._numbers)}"


def _refuse(fixturedef: pytest.FixtureDef[Any], test: str) -> None:
    __tracebackhide__ = True
    pytest.fail(
        f"the fixture {fixturedef.argname!r} is @distributed, it lives on ranks: only a @distributed test can use it, "
        f"and {test} is not one",
        pytrace=False,
    )
