"""The controller's side of distributed tests: every phase of a test is run by the ranks and reported as one."""

import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest

from pytest_ddp.errors import LaunchError, UsageError
from pytest_ddp.items import is_distributed, node_id, request_of
from pytest_ddp.launcher import SpawnLauncher, launcher_for, shared_launcher
from pytest_ddp.lease import Leases
from pytest_ddp.machine import Machine
from pytest_ddp.outcome import Outcome
from pytest_ddp.phase import ItemId, PhaseRequest, When
from pytest_ddp.plan import Plan, Refuse, Run, Skip, plan
from pytest_ddp.rank_start import rank_start
from pytest_ddp.ranks import Ranks
from pytest_ddp.report import merge, output_sections
from pytest_ddp.request import Request
from pytest_ddp.settings import Settings
from pytest_ddp.workers import shared_folder
from pytest_ddp.world import World

if TYPE_CHECKING:
    from pytest_ddp.rank_group import RankGroup

PLUGIN = "ddp-controller"
_PHASE_TARGET = "pytest_ddp.rank_session:phase"
_HOST = "pytest_ddp.rank_session:host"
_NO_GIVEN = (
    "@distributed does not go with @given yet: every rank would draw examples of its own. Write a plain @given test "
    "that takes the fixture 'ddp_ranks' and passes each example on: ddp_ranks(world_size=2).run(function, example)"
)
_outcomes = pytest.StashKey[tuple[list[Outcome], World]]()
_sections = pytest.StashKey[list[tuple[str, str]]]()


class Controller:
    """Hooks of the process that runs pytest; starts no process and imports no torch before a test needs it."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self._open = ExitStack()
        self._group: RankGroup | None = None
        self._timeout = settings.timeout
        self._next: pytest.Item | None = None
        self._ranks: dict[str, Ranks] = {}
        self._leases = Leases(shared_folder(config))

    @cached_property
    def machine(self) -> Machine:
        """This machine."""
        return Machine.detect()

    def ranks(self, device: str) -> Ranks:
        """Return the warm ranks of this run for a device, each with a pytest session."""
        if device not in self._ranks:
            capture = self.config.getoption("capture") != "no"
            body = cloudpickle.dumps(rank_start(self.config))
            self._ranks[device] = Ranks(launcher_for(device), host=_HOST, host_body=body, capture=capture)
        return self._ranks[device]

    def plan(self, request: Request) -> Plan:
        """Decide what to do with what a test asks for."""
        return plan(self.settings, request, self.machine)

    def lease(self, world: World) -> AbstractContextManager[World]:
        """Hold what a world needs among the workers of this run; give the world with the GPUs that it got."""
        return self._leases.hold(world, self.machine)

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Let the phases of a distributed test happen on the ranks instead of here."""
        if is_distributed(item) and not self.config.getoption("setupplan", default=False):
            if sys.platform == "linux" and not self.config.getoption("collectonly"):
                shared_launcher().begin()
            item.setup = partial(self._setup, item)  # type: ignore[method-assign]
            item.runtest = partial(self._call, item)  # type: ignore[method-assign]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, nextitem: pytest.Item | None) -> Generator[None, object, object]:
        """Remember what comes next: it decides which fixtures the ranks keep."""
        self._next = nextitem
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Replace pytest's view of a phase, which saw nothing but our round trip, by that of the ranks."""
        report = yield
        if _outcomes in item.stash:
            outcomes, world = item.stash[_outcomes]
            del item.stash[_outcomes]
            merge(report, outcomes, world, self.config)
            item.stash[_sections] += output_sections(outcomes, report.when, self.config)
        if _sections in item.stash:
            report.sections = [*report.sections, *item.stash[_sections]]
        return report

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Let the ranks finish inside the wrappers of others: pytest-cov's collects what the ranks have measured."""
        try:
            return (yield)
        finally:
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
        self._open.close()
        for ranks in self._ranks.values():
            ranks.close()
            if isinstance(ranks.launcher, SpawnLauncher):  # the fork server lives as long as this process
                ranks.launcher.close()
        self._ranks.clear()
        self._leases.close()

    def _setup(self, item: pytest.Item) -> None:
        item.stash[_sections] = []
        run = self._decide(item)
        world = self._open.enter_context(self.lease(run.world))
        try:
            ranks = self.ranks(world.device)
            if run.isolation == "process":
                ranks = self._open.enter_context(ranks.fresh())
            self._group = self._open.enter_context(ranks.group(world))
        except LaunchError as error:
            self._open.close()
            pytest.fail(str(error), pytrace=False)
        self._timeout = run.timeout
        item.addfinalizer(partial(self._teardown, item))
        self._phase(item, "setup")

    def _call(self, item: pytest.Item) -> None:
        self._phase(item, "call")

    def _teardown(self, item: pytest.Item) -> None:
        try:
            self._phase(item, "teardown", self._following(item))
        finally:
            self._open.close()
            self._group = None

    def _phase(self, item: pytest.Item, when: When, following: pytest.Item | None = None) -> None:
        if self._group is None:
            raise RuntimeError(f"{item.nodeid} has no ranks")
        request = PhaseRequest(when, _item_id(item), _item_id(following) if following else None)
        outcomes = self._group.run(_PHASE_TARGET, request.encode(), timeout=self._timeout)
        item.stash[_outcomes] = outcomes, self._group.world

    def _decide(self, item: pytest.Item) -> Run:
        if hasattr(getattr(item, "obj", None), "hypothesis"):
            pytest.fail(_NO_GIVEN, pytrace=False)
        try:
            decision = self.plan(request_of(item))
        except UsageError as error:
            pytest.fail(str(error), pytrace=False)
        if isinstance(decision, Skip):
            pytest.skip(decision.reason)
        if isinstance(decision, Refuse):
            pytest.fail(decision.reason, pytrace=False)
        return decision

    def _following(self, item: pytest.Item) -> pytest.Item | None:
        """Return the next distributed test, as far as can be known."""
        items: list[Any] = item.session.items
        if any((item.session.shouldfail, item.session.shouldstop)) or self._next not in items:
            return None
        return next((later for later in items[items.index(self._next) :] if is_distributed(later)), None)


def _item_id(item: pytest.Item) -> ItemId:
    return ItemId(str(item.path), node_id(item))
