"""The controller's side of distributed tests: every phase of a test is run by the ranks and reported as one."""

import sys
from collections.abc import Generator
from contextlib import ExitStack
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest

from pytest_ddp.errors import LaunchError, UsageError
from pytest_ddp.example_ranks import ExampleRanks
from pytest_ddp.given_items import check_hypothesis, is_given, rank_fixtures, run_given
from pytest_ddp.given_report import Bugs, report_bugs
from pytest_ddp.items import is_distributed, request_of
from pytest_ddp.launcher import SpawnLauncher, launcher_for, shared_launcher
from pytest_ddp.machine import Machine
from pytest_ddp.outcome import Outcome
from pytest_ddp.phase import ItemId, PhaseRequest, When
from pytest_ddp.plan import Plan, Refuse, Run, Skip, plan
from pytest_ddp.rank_start import rank_start
from pytest_ddp.ranks import Ranks
from pytest_ddp.report import merge, output_sections
from pytest_ddp.request import Request
from pytest_ddp.settings import Settings
from pytest_ddp.world import World

if TYPE_CHECKING:
    from pytest_ddp.rank_group import RankGroup

PLUGIN = "ddp-controller"
_PHASE_TARGET = "pytest_ddp.rank_session:phase"
_HOST = "pytest_ddp.rank_session:host"
_outcomes = pytest.StashKey[tuple[list[Outcome], World]]()
_sections = pytest.StashKey[list[tuple[str, str]]]()
_bugs = pytest.StashKey[Bugs]()


class Controller:
    """Hooks of the process that runs pytest; starts no process and imports no torch before a test needs it."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self._open = ExitStack()
        self._pool: Ranks | None = None
        self._group: RankGroup | None = None
        self._timeout = settings.timeout
        self._next: pytest.Item | None = None
        self._ranks: dict[str, Ranks] = {}

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

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Let the phases of a distributed test happen on the ranks instead of here."""
        if is_distributed(item):
            if sys.platform == "linux":
                shared_launcher().begin()
            item.setup = partial(self._setup, item)  # type: ignore[method-assign]
            item.runtest = partial(self._call, item)  # type: ignore[method-assign]
            item.teardown = lambda: None  # type: ignore[method-assign]  # a TestCase would miss what setup makes

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, nextitem: pytest.Item | None) -> Generator[None, object, object]:
        """Remember what comes next: it decides which fixtures the ranks keep."""
        self._next = nextitem
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Let Hypothesis's own plugin look at fixtures that are not here."""
        __tracebackhide__ = True
        with rank_fixtures(item):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Replace pytest's view of a phase, which saw nothing but our round trip, by that of the ranks."""
        report = yield
        if _outcomes in item.stash:
            outcomes, world = item.stash[_outcomes]
            del item.stash[_outcomes]
            if _bugs in item.stash:
                report_bugs(report, item.stash[_bugs], self.config)
                del item.stash[_bugs]
            else:
                merge(report, outcomes, world, self.config)
            item.stash[_sections] += output_sections(outcomes, report.when, self.config)
        if _sections in item.stash:
            report.sections = [*report.sections, *item.stash[_sections]]
        return report

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

    def _setup(self, item: pytest.Item) -> None:
        item.stash[_sections] = []
        run = self._decide(item)
        try:
            ranks = self.ranks(run.world.device)
            if run.isolation == "process":
                ranks = self._open.enter_context(ranks.fresh())
            self._pool, self._group = ranks, self._open.enter_context(ranks.group(run.world))
        except LaunchError as error:
            self._open.close()
            pytest.fail(str(error), pytrace=False)
        self._timeout = run.timeout
        item.addfinalizer(partial(self._teardown, item))
        self._phase(item, "setup")

    def _call(self, item: pytest.Item) -> None:
        if self._group is not None and self._pool is not None and is_given(item):
            setup, teardown = (PhaseRequest(when, _item_id(item)).encode() for when in ("setup", "teardown"))
            ranks = ExampleRanks(self._pool, self._group, self._timeout, setup, teardown)
            outcomes, bugs = run_given(item, ranks)
            item.stash[_outcomes] = list(outcomes), self._group.world
            if bugs is not None:
                item.stash[_bugs] = bugs
        else:
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
        check_hypothesis(item)
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
    return ItemId(str(item.path), item.nodeid)
