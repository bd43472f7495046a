"""The same state for every test on a rank: seeds of its own, and nothing that an earlier test left behind."""

import unittest
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_ddp.context import DDPContext
from pytest_ddp.errors import LeakWarning
from pytest_ddp.items import group_owner, is_adopted, node_id
from pytest_ddp.planning.world import World
from pytest_ddp.pytest_internals import parameter_index, tear_down
from pytest_ddp.rank.collective_hooks import begin_test, unfinished_messages
from pytest_ddp.rank.process_group import CHECK_EVERY, HELD_GROUPS_LIMIT, device_of, held_groups, leave_groups
from pytest_ddp.rank.worker import Rank
from pytest_ddp.rank_session.leak_kind import Leak, forgiven_by
from pytest_ddp.rank_session.leaks import Snapshot, in_words
from pytest_ddp.seeds import random_state_kept, seed_everything, seed_of
from pytest_ddp.settings import Settings


def _group_identity() -> int | None:
    """Return the id of the default process group, which must not be kept alive; None if there is none."""
    return id(dist.group.WORLD) if dist.is_initialized() else None


_UNCHECKED = ("thread:*", "CUDA memory")  # not checked with --ddp-leaks=off, because checking takes time


@dataclass(frozen=True)
class _DefaultGroup:
    """The default process group at the start of a test.

    Attributes:
        name: the controller's name for it.
        shared: whether other tests, or a fixture that outlives this test, have the group too.
        own: whether tests make it themselves; one that they leave behind is destroyed without a report.
    """

    name: str = ""
    shared: bool = False
    own: bool = False
    identity: int | None = field(default_factory=_group_identity)

    def leaks(self) -> Iterator[Leak]:
        now = _group_identity()
        if now == self.identity or self.own:
            return
        if self.shared:
            yield Leak("a default process group destroyed that other tests share", "default group", lasting=True)
        elif now is not None:
            yield Leak("1 process group not destroyed (init_process_group)", "default group")


class Isolation:
    """Hooks that seed every test and check it for leaks. Fixtures of wider scope may keep what they change.

    Attributes:
        context: the value of the fixture `ddp`.
        retire: what this test left behind and could not be restored; then this process must not run another test.
    """

    def __init__(self, settings: Settings) -> None:
        self.context = DDPContext(torch.device("cpu"), dist.HashStore())
        self.retire = ""
        self._settings = settings
        unchecked = _UNCHECKED if settings.leaks == "off" else ()
        self._forgiven = forgiven_by((*settings.leaks_ignore, *unchecked))
        self._before = Snapshot.take()
        self._unfinished: list[str] = []
        self._group = _DefaultGroup()
        self._groups = 0
        self._seeds_alike = False

    def start_test(self, item: pytest.Item, shared_path: str) -> None:
        """Prepare for the test that the current run sets up."""
        run = Rank.current.run
        if run is None:
            raise RuntimeError("no test is running on this rank")
        self.retire = ""
        shared = run.group == self._group.name or group_owner(item) is not None
        self._group = _DefaultGroup(run.group, shared, own=not run.world.has_group)
        self._groups += not self._group.shared
        self._seeds_alike = is_adopted(item)  # as in the new processes for which it was written
        describe_rank(self.context, Rank.current.launch.rank, run.world)
        self.context.seed = seed_of(self._settings.seed, node_id(item))
        self.context._shared_path = shared_path  # noqa: SLF001
        self.context.store = Rank.current.group.store(shared_path)
        begin_test(has_group=run.world.has_group)
        item.setup = partial(self._setup, item)  # type: ignore[method-assign]
        self._seed(self.context.seed)

    def _seed(self, seed: int) -> None:
        """Seed the random numbers, differently on each rank; those of an adopted test alike."""
        seed_everything(seed if self._seeds_alike else seed + self.context.rank)

    def _setup(self, item: pytest.Item) -> None:
        __tracebackhide__ = True
        self._before = Snapshot.take()
        item.addfinalizer(partial(self._check_leaks, item))  # the first finalizer is the last to run
        type(item).setup(item)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """Seed a fixture of wider scope by its own name, and let it keep what it changes."""
        __tracebackhide__ = True
        if fixturedef.scope == "function":
            return (yield)
        name = f"{fixturedef.baseid}::{fixturedef.argname}{parameter_index(request)}"
        # The test's numbers must not depend on whether this test or an earlier one sets such a fixture up.
        with random_state_kept():
            self._seed(seed_of(self._settings.seed, name))
            try:
                return (yield)
            finally:
                self._before = Snapshot.take()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Look for unfinished messages; finish wider fixtures too if this process must not run another test."""
        __tracebackhide__ = True
        self._unfinished = unfinished_messages()  # all ranks have finished their calls
        result = yield
        if self.retire:
            tear_down(item.session, upcoming=None)
        return result

    def _check_leaks(self, item: pytest.Item) -> None:
        """Restore what the test left changed, and report it as `--ddp-leaks` says."""
        due = not self._group.shared and self._groups % CHECK_EVERY == 0
        if due and held_groups() > HELD_GROUPS_LIMIT // 2:  # at the limit, a rank ends without finishing its fixtures
            self.retire = "process groups that cannot be freed"
        unfinished = [text for text in unfinished_messages() if text in self._unfinished]  # by a fixture neither
        if self._group.own and not self._group.shared:
            leave_groups()
        leaks = [*self._before.restore(self._forgiven), *self._group.leaks()]
        if not self._forgiven("operation"):
            leaks += [Leak(text, "operation", restored=False) for text in unfinished]
        if not leaks:
            return
        self.retire = "; ".join(leak.what for leak in leaks if leak.lasting) or self.retire
        if not is_adopted(item):  # such a test was written for its own processes, in which it need not clean up
            report_leaks(leaks, item, self._settings.leaks)


def describe_rank(context: DDPContext, rank: int, world: World) -> None:
    """Let the value of the fixture `ddp` describe a rank of a world."""
    context.rank, context.world_size, context.backend = rank, world.size, world.backend
    context.local_rank, context.node_rank = world.local_rank(rank), world.node_of(rank)
    context.local_world_size, context.device = world.local_size(rank), device_of(rank, world)


def report_leaks(leaks: list[Leak], item: pytest.Item, how: str) -> None:
    """Report what a test left behind as `--ddp-leaks` says."""
    text = f"{item.name} left behind: {in_words(leaks)}"
    if how == "error":
        pytest.fail(f"{text} (--ddp-leaks=error)", pytrace=False)
    if how == "warn":
        warn(text, item, LeakWarning)


def hold_back_tear_down(item: Any) -> None:
    """Let a TestCase's `tearDown` and cleanups run in teardown, which begins when all ranks have finished their calls.

    unittest would run them at the end of the call, so that a rank could remove a file that another one still reads.
    Examples of Hypothesis are not held back: each has a setUp and a tearDown of its own.
    """
    case = getattr(item, "instance", None)
    if not isinstance(case, unittest.TestCase) or isinstance(case, unittest.IsolatedAsyncioTestCase):
        return
    tear_down = case.tearDown

    def called_by_unittest() -> None:
        item.addfinalizer(partial(_tear_down_case, case, tear_down, case._cleanups))  # type: ignore[attr-defined]  # noqa: SLF001
        case._cleanups = []  # type: ignore[attr-defined]  # noqa: SLF001

    case.tearDown = called_by_unittest  # type: ignore[method-assign]


def _tear_down_case(case: Any, tear_down: Callable[[], None], cleanups: list[Any]) -> None:
    with ExitStack() as stack:
        for function, arguments, keywords in cleanups:
            stack.callback(function, *arguments, **keywords)
        try:
            tear_down()
        finally:  # what tearDown has added
            for function, arguments, keywords in case._cleanups:  # noqa: SLF001
                stack.callback(function, *arguments, **keywords)
            case._cleanups = []  # noqa: SLF001


def warn(text: str, item: pytest.Item, category: type[Warning]) -> None:
    """Warn about a test, at its own line."""
    path, line, _ = item.reportinfo()  # a test that a class inherits may stand in another file
    try:
        warnings.warn_explicit(text, category, str(path), (line or 0) + 1)
    except category as error:  # a filter turned it into an error; the traceback would show our frames only
        pytest.fail(f"{category.__name__}: {error}", pytrace=False)
