"""The controller's side of distributed tests: hooks of the process that runs pytest."""

import itertools
import os
import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from pytest_ddp.controller.debugger import GROUP_SECONDS, debugger_for
from pytest_ddp.controller.group_scope import Places
from pytest_ddp.controller.phase_runner import Decisions, PhaseRunner, bugs_key, one_go_key, outcomes_key, world_key
from pytest_ddp.controller.rank_config import session_start
from pytest_ddp.controller.xdist import Leases, shared_folder
from pytest_ddp.given.items import fixtures_stay_on_ranks
from pytest_ddp.given.report import report_bugs
from pytest_ddp.items import is_distributed, mentions_distributed, node_id, rank_fixtures
from pytest_ddp.marker import FIXTURE_OPTIONS
from pytest_ddp.outcomes.failure import failures
from pytest_ddp.planning.plan import Machine, Plan, Refuse, plan
from pytest_ddp.planning.request import Request
from pytest_ddp.planning.world import World
from pytest_ddp.pool.launcher import SpawnLauncher, launcher_for, shared_launcher
from pytest_ddp.pool.pool import RankPool
from pytest_ddp.protocol.targets import HOST
from pytest_ddp.pytest_internals import base_temp, has_set_up, keep_failure
from pytest_ddp.rank_session.log_capture import fast_log_capture
from pytest_ddp.reporting.exception_info import root_exception
from pytest_ddp.reporting.forwarding import forward_subtests, forward_suite_properties, forward_warnings
from pytest_ddp.reporting.merge import merge, output_sections
from pytest_ddp.reporting.run_summary import Interruption, Summary
from pytest_ddp.seeds import seed_section
from pytest_ddp.settings import Settings

PLUGIN = "ddp-controller"
NO_WINDOWS = (
    "distributed tests do not run on Windows: ranks share sockets, files and signals with pytest as Linux and macOS "
    "have them. Run pytest in WSL (Windows Subsystem for Linux); plain tests run here"
)
_sections = pytest.StashKey[list[tuple[str, str]]]()


class Controller:
    """Starts no process before a module speaks of distributed tests, and imports no torch before a test needs it."""

    def __init__(self, config: pytest.Config, settings: Settings, summary: Summary) -> None:
        self.config = config
        self.settings = settings
        self._summary = summary
        self.places = Places(self)
        self.runner = PhaseRunner(self.places, Decisions(self.plan), self._new_shared_path, debugger_for(config))
        self._numbers = itertools.count()
        self._ranks: dict[str, RankPool] = {}
        self._leases = Leases(shared_folder(config))
        config.pluginmanager.register(Interruption())

    @cached_property
    def machine(self) -> Machine:
        """This machine."""
        return Machine.detect()

    def ranks(self, device: str) -> RankPool:
        """Return the warm ranks of this run for a device, each with a pytest session."""
        if device not in self._ranks:
            capture = self.config.getoption("capture", "no") != "no"
            body = cloudpickle.dumps(session_start(self.config, self.settings))
            launcher = launcher_for(device)
            counts = self._summary.ranks
            ranks = RankPool(launcher, host=HOST, host_body=body, capture=capture, counts=counts)
            if self.runner.debugger:
                ranks.timeout_margin = GROUP_SECONDS
            self._ranks[device] = ranks
        return self._ranks[device]

    def plan(self, request: Request) -> Plan:
        """Decide what to do with what a test asks for."""
        if sys.platform == "win32":
            return Refuse(NO_WINDOWS)
        return plan(self.settings, request, self.machine)

    def lease(self, world: World) -> AbstractContextManager[World]:
        """Hold what a world needs among the workers of this run; give the world with the GPUs that it got."""
        return self._leases.hold(world, self.machine)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(self, module_path: Path) -> None:
        """Begin to start the fork server while a module of distributed tests is imported: both of them import torch."""
        if self._forks and mentions_distributed(module_path):
            shared_launcher().start_server()

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Let the phases of a distributed test happen on ranks instead of here; refuse ranks' fixtures to any other."""
        if self._plans:
            return
        if is_distributed(item):
            if self._forks:
                shared_launcher().start_server()
            self.runner.take_over(item)
        elif fixtures := rank_fixtures(item):
            item.setup = partial(_refuse, fixtures[0], item.name)  # type: ignore[method-assign]

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
        """Remember what comes next: it decides which fixtures the ranks keep."""
        self.runner.upcoming = nextitem
        item.stash[_sections] = []
        with fast_log_capture() if is_distributed(item) else nullcontext():
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
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Let the ranks go on when every plugin is content."""
        __tracebackhide__ = True
        result = yield
        self.runner.go_on(item)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Let Hypothesis's own plugin look at fixtures that are not here; let the ranks go on."""
        __tracebackhide__ = True
        with fixtures_stay_on_ranks(item):
            result = yield
        self.runner.go_on(item)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Replace pytest's view of a phase, which saw nothing but our round trip, by that of the ranks.

        What another plugin raised around the round trip stands, unless the ranks failed too. Otherwise all plugins
        see an exception like the one that was raised on a rank.
        """
        if not is_distributed(item):
            return (yield)
        raised = call.excinfo is not None
        if not (raised or self.runner.debugger):
            call.excinfo = root_exception(item.stash.get(outcomes_key, ()))
        report = yield
        self._complete(item, report, raised=raised)
        if one_go := item.stash.get(one_go_key, None):
            one_go.correct(report)
        return report

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Let the ranks finish inside the wrappers of others: pytest-cov's collects what the ranks have measured.

        What an interrupted run has left set up is torn down in pytest_sessionfinish, and may need its ranks for that.
        """
        try:
            result = yield
        except (pytest.Session.Failed, pytest.Session.Interrupted):  # told to stop, between two tests
            self.runner.finish()
            raise
        else:
            self.runner.finish()
            return result
        finally:
            if not has_set_up(session):
                self.close()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Let the ranks finish."""
        self.close()

    def pytest_unconfigure(self) -> None:
        """End the ranks also when the session never finished."""
        self.close()

    def close(self) -> None:
        """End every rank."""
        self.runner.close()
        for ranks in self._ranks.values():
            ranks.close()
            self._summary.add_exit_output(ranks.exit_output)
            if isinstance(ranks.launcher, SpawnLauncher):  # the fork server lives as long as this process
                ranks.launcher.close()
        self._ranks.clear()
        self._leases.close()

    def _complete(self, item: pytest.Item, report: pytest.TestReport, *, raised: bool) -> None:
        sections = item.stash.setdefault(_sections, [])
        world = item.stash.get(world_key, None)
        vars(report)["ddp_world"] = str(world or "")  # travels with the report, also from xdist's workers
        if world is not None and outcomes_key in item.stash:
            outcomes = item.stash[outcomes_key]
            del item.stash[outcomes_key]
            if (bugs := item.stash.get(bugs_key, None)) and report.when == "call":
                report_bugs(report, bugs, self.config)
            elif failures(outcomes) or not raised:
                merge(report, outcomes, world, self.config)
            sections += output_sections(outcomes, report.when)
            forward_subtests(item, outcomes)
            forward_warnings(self.config, outcomes)
            forward_suite_properties(self.config, outcomes)
            if report.failed:
                sections.append(seed_section(self.settings.seed, node_id(item)))
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
