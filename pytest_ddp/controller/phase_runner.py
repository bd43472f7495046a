"""Runs setup, call and teardown of distributed tests on their ranks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from pytest_ddp.controller.certainty import Certainty, ends_alone
from pytest_ddp.controller.debugger import NO_TRACE, Debugger
from pytest_ddp.controller.early import Early, are_ready, may_begin_early
from pytest_ddp.controller.exits import leave_if_asked
from pytest_ddp.controller.group_scope import Place, Places
from pytest_ddp.controller.next_item import after, following
from pytest_ddp.controller.one_go import OneGo
from pytest_ddp.errors import LaunchError, UsageError
from pytest_ddp.given.example_ranks import ExampleRanks
from pytest_ddp.given.items import check_hypothesis, is_given, run_given
from pytest_ddp.given.report import Bugs
from pytest_ddp.items import node_id, request_of
from pytest_ddp.outcomes.failure import failures
from pytest_ddp.outcomes.outcome import Outcome
from pytest_ddp.planning.plan import Plan, Refuse, Run, Skip
from pytest_ddp.planning.request import Request
from pytest_ddp.planning.world import World
from pytest_ddp.protocol.phases import ItemId, PhaseRequest, When
from pytest_ddp.protocol.targets import PHASE
from pytest_ddp.reporting.merge import answer_of, passed_plainly

# What becomes of a distributed test: told when its turn comes, and foreseen while the one before it runs.


@dataclass
class Decisions:
    """Plans tests of pytest by what they ask for.

    Attributes:
        plan: decides what to do with what a test asks for.
    """

    plan: Callable[[Request], Plan]
    _foreseen: tuple[pytest.Item, Plan] | None = None

    def of(self, item: pytest.Item) -> Run:
        """Return how to run a test whose turn it is; skip or fail it where that is decided."""
        if item.config.getoption("trace", False):
            pytest.fail(NO_TRACE, pytrace=False)
        check_hypothesis(item)
        decision = self._plan(item)
        if isinstance(decision, Skip):
            pytest.skip(decision.reason)
        if isinstance(decision, Refuse):
            pytest.fail(decision.reason, pytrace=False)
        return decision

    def foresee(self, item: pytest.Item) -> Plan:
        """Return what will be decided of a test to come, which is wanted several times while the one before it runs."""
        if self._foreseen is None or self._foreseen[0] is not item:
            self._foreseen = item, self._plan(item)
        return self._foreseen[1]

    def _plan(self, item: pytest.Item) -> Plan:
        try:
            return self.plan(request_of(item))
        except UsageError as error:
            return Refuse(str(error))


outcomes_key = pytest.StashKey[Sequence[Outcome]]()
bugs_key = pytest.StashKey[Bugs]()
one_go_key = pytest.StashKey[OneGo]()
world_key = pytest.StashKey[World]()


@dataclass
class PhaseRunner:
    """Takes one distributed test after the other through its phases.

    Attributes:
        places: where tests run.
        decisions: what becomes of each test.
        new_shared_path: gives a folder name for each test.
        debugger: shows a failure on a rank's debugger.
        upcoming: the test that pytest runs next.
    """

    places: Places
    decisions: Decisions
    new_shared_path: Callable[[], str]
    debugger: Debugger | None = None
    upcoming: pytest.Item | None = None
    _place: Place | None = None
    _timeout: float = 0.0
    _shared_path: str = ""
    _failed: bool = False
    _asked: PhaseRequest | None = None
    _following: pytest.Item | None = None
    _announced: ItemId | None = None
    _torn_down: Sequence[Outcome] | None = None
    _early: Early | None = None
    _latest: Sequence[Outcome] = ()
    _one_go: OneGo | None = None
    _called: bool = False
    _certainty: Certainty = field(default_factory=Certainty)

    def take_over(self, item: pytest.Item) -> None:
        """Let the phases of a test happen on ranks instead of here."""
        item.setup = partial(self._setup, item)  # type: ignore[method-assign]
        item.runtest = partial(self._call, item)  # type: ignore[method-assign]
        item.teardown = lambda: None  # type: ignore[method-assign]  # a TestCase would miss what setup makes

    def go_on(self, item: pytest.Item) -> None:
        """Let the ranks begin the next phase, if all is well: pytest reports the last one meanwhile."""
        place = self._place
        if place is None or place.group.lost or self.debugger or self._asked:
            return
        if item.config.getoption("setuponly", False):
            return
        if not all(passed_plainly(outcome) for outcome in self._known()):
            return
        if self._one_go is not None or self._called:
            self._ask(item, "teardown")
            if self._goes_on():
                self._begin_next()
        elif not is_given(item):
            self._ask(item, "call")

    def close(self) -> None:
        """Give up the ranks; a test that is still set up then has nothing left to tear down."""
        self._withdraw()
        if self._early is not None:
            self._early.place.group.drain()
            self._early = None
        self._place = None
        self.places.close()

    def finish(self) -> None:
        """Let ranks finish a test that they have begun and pytest will not come to; nobody sees what becomes of it."""
        early, self._early = self._early, None
        if early is not None:
            early.place.group.answers()

    def _setup(self, item: pytest.Item) -> None:
        early = self._begun(item)
        run = self.decisions.of(item)
        item.stash[world_key] = run.world
        try:
            self._place = self.places.enter(item, run, begun=early is not None)
        except LaunchError as error:
            pytest.fail(str(error), pytrace=False)
        self._timeout = run.timeout
        self._shared_path = early.shared_path if early else self.new_shared_path()
        self._failed, self._called, self._one_go, self._torn_down = False, False, None, None
        self._asked, self._announced = early, early.following if early else None
        if self._following is not item or not self._place.pool.ranks_with_fixtures:
            self._certainty.forget()
        self._following = None
        item.addfinalizer(partial(self._teardown, item))
        if not failures(self._phase(item, "setup")):
            self._certainty.learn(item)

    def _call(self, item: pytest.Item) -> None:
        __tracebackhide__ = True
        self._called = True
        if is_given(item):
            self._run_examples(item)
        elif self._one_go is None:
            self._phase(item, "call")
        elif self._one_go.guard is not None:
            raise self._one_go.guard
        else:
            self._finish(item, "call", self._one_go.call)

    def _run_examples(self, item: pytest.Item) -> None:
        __tracebackhide__ = True
        place = self._current()
        setup, teardown = (self._request(item, when).encode() for when in ("setup", "teardown"))
        outcomes, bugs = run_given(item, ExampleRanks(place.pool, place.group, self._timeout, setup, teardown))
        if bugs is not None:
            item.stash[bugs_key] = bugs
        self._finish(item, "call", outcomes)

    def _teardown(self, item: pytest.Item) -> None:
        place = self._place
        if place is None:
            return
        if self._asked and self._asked.when != "teardown":  # interrupted before pytest came to wait for it
            self._withdraw()
        try:
            outcomes = self._phase(item, "teardown")
            if any(answer_of(outcome).retire for outcome in outcomes) or (self._following and place.group.lost):
                self._following = None
                self.places.retire(place)
        except BaseException:
            self._following = None
            raise
        finally:
            self.places.leave(place, self._following)
            self._place = None

    def _phase(self, item: pytest.Item, when: When) -> Sequence[Outcome]:
        asked = self._asked or self._ask(item, when)
        self._asked = None
        wait = self._current().group.answers
        outcomes: Sequence[Outcome]
        if self._torn_down is not None:
            outcomes = self._torn_down
        elif asked.with_call:
            self._one_go = item.stash[one_go_key] = OneGo.of(wait)
            outcomes = self._one_go.setup
        else:
            outcomes = wait()
        self._finish(item, when, outcomes)
        return outcomes

    def _ask(self, item: pytest.Item, when: When) -> PhaseRequest:
        place = self._current()
        if self.debugger:
            self.debugger.watch(place.group)
        if when == "teardown":
            self._following = self._next(item, self.upcoming)
        request = self._request(item, when, self._following)
        if when == "setup" and self._may_go_on_at_once(item):
            request = self._in_one_go(item, self.upcoming, self._shared_path)
            self._announced = request.following
        self._asked = request
        if when == "teardown" and self._goes_on():
            place.group.expect_more(timeout=self._timeout)
        else:
            place.group.ask(PHASE, request.encode(), timeout=self._timeout)
        return request

    def _begin_next(self) -> None:
        """Begin the next test too, if that is sure to be one for the same ranks, as soon as they have torn down."""
        item, place = self._following, self._current()
        if item is None or item is not self.upcoming or not place.holds(item, place.world):
            return
        if not (self._may_go_on_at_once(item) and may_begin_early(item)):
            return
        self._torn_down = place.group.answers()
        decision = self.decisions.foresee(item)
        if not (are_ready(self._torn_down) and isinstance(decision, Run)):
            return
        request = self._in_one_go(item, after(item), self.new_shared_path())
        place.group.ask(PHASE, request.encode(), timeout=decision.timeout)
        self._early = Early(item, place, request)

    def _begun(self, item: pytest.Item) -> PhaseRequest | None:
        """Return what ranks were asked for this test already; they are replaced if it was for another one."""
        early = self._early
        if early is None or early.item is item:
            self._early = None
            return early.request if early else None
        self.finish()
        self.places.retire(early.place)
        return None

    def _next(self, item: pytest.Item, upcoming: pytest.Item | None) -> pytest.Item | None:
        return following(item.session, upcoming, self._current(), self.decisions.foresee, failed=self._failed)

    def _in_one_go(self, item: pytest.Item, upcoming: pytest.Item | None, shared_path: str) -> PhaseRequest:
        """Ask for setup and the call, and for teardown if ranks need not wait for one another before it."""
        alone = PhaseRequest("setup", _item_id(item), shared_path=shared_path, with_call=True)
        later = self._next(item, upcoming)
        if later is None or self._current().world.observe or not ends_alone(item, later):
            return alone
        return replace(alone, following=_item_id(later), with_teardown=True)

    def _goes_on(self) -> bool:
        """Whether every rank tears down already, for the test that follows."""
        if self._announced is None or self._following is None or self._announced != _item_id(self._following):
            return False
        return all(answer_of(outcome).goes_on for outcome in self._known())

    def _known(self) -> Sequence[Outcome]:
        """Return the latest outcomes; of a call that was run with setup, also before pytest comes to ask for it."""
        return self._one_go.call or self._latest if self._one_go else self._latest

    def _may_go_on_at_once(self, item: pytest.Item) -> bool:
        shows_setup = any(item.config.getoption(name, False) for name in ("setuponly", "setupshow"))
        stops_between = self.debugger or shows_setup or is_given(item)
        return not stops_between and self._certainty.of_setup(item)

    def _withdraw(self) -> None:
        if self._asked and self._place:
            self._place.group.abort()
        self._asked = None

    def _finish(self, item: pytest.Item, when: When, outcomes: Sequence[Outcome]) -> None:
        leave_if_asked(outcomes)
        self._failed = self._failed or bool(failures(outcomes))
        item.stash[outcomes_key] = self._latest = outcomes
        if self.debugger:
            self.debugger.after_phase(item, when, self._current().group, outcomes)

    def _request(self, item: pytest.Item, when: When, following: pytest.Item | None = None) -> PhaseRequest:
        return PhaseRequest(when, _item_id(item), _item_id(following) if following else None, self._shared_path)

    def _current(self) -> Place:
        if self._place is None:
            raise RuntimeError("no distributed test is being run")
        return self._place


def _item_id(item: pytest.Item) -> ItemId:
    return ItemId(str(item.path), node_id(item))
