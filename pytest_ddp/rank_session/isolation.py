"""The state that each test finds on a rank: its own seed, and nothing left behind by the test before it."""

import warnings
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch.distributed as dist

from pytest_ddp.errors import LeakWarning
from pytest_ddp.items import group_owner, node_id
from pytest_ddp.pytest_internals import parameter_index, tear_down
from pytest_ddp.rank.process_group import CHECK_EVERY, HELD_GROUPS_LIMIT, held_groups
from pytest_ddp.rank.worker import Rank
from pytest_ddp.rank_session.context import RankContext
from pytest_ddp.rank_session.leaks import Leak, Snapshot
from pytest_ddp.seeds import seed_everything, seed_of
from pytest_ddp.settings import Settings


@dataclass(frozen=True)
class _Group:
    """The default process group that a test finds.

    Attributes:
        name: what the controller calls it.
        identity: of the object; the group itself must not be kept alive.
        shared: whether other tests have it too, or a fixture that outlives the test.
    """

    name: str = ""
    identity: int | None = None
    shared: bool = False

    @classmethod
    def of_test(cls, item: pytest.Item, before: "_Group") -> "_Group":
        name = Rank.current.run.group if Rank.current.run else ""
        return cls(name, _default_group(), shared=name == before.name or group_owner(item) is not None)

    def leaks(self) -> Iterator[Leak]:
        now = _default_group()
        if now == self.identity:
            return
        if self.shared:
            yield Leak("a default process group destroyed that other tests share", lasting=True)
        elif now is not None:
            yield Leak("1 process group not destroyed (init_process_group)")


def _default_group() -> int | None:
    return id(dist.group.WORLD) if dist.is_initialized() else None


class Isolation:
    """Hooks that seed and tidy; fixtures of wider scope than a test may keep what they hold.

    Attributes:
        context: the value of the fixture `ddp`.
        retire: what the test at hand left behind that could not be put back.
    """

    def __init__(self, settings: Settings) -> None:
        self.context = RankContext()
        self.retire = ""
        self._settings = settings
        self._before = Snapshot.take()
        self._groups = 0
        self._group = _Group()

    def start_test(self, item: pytest.Item, shared_path: str) -> None:
        """Turn to the next test."""
        self.retire = ""
        self._group = _Group.of_test(item, self._group)
        self._groups += not self._group.shared
        self.context.start_test(seed_of(self._settings.seed, node_id(item)), shared_path)
        item.setup = partial(self._setup, item)  # type: ignore[method-assign]
        self.seed()

    def seed(self) -> None:
        """Start the test's random numbers, which differ between ranks."""
        seed_everything(self.context.seed + self.context.rank)

    def _setup(self, item: pytest.Item) -> None:
        __tracebackhide__ = True
        self._before = Snapshot.take()
        item.addfinalizer(partial(self._tidy, item))  # the first of its finalizers, so the last to run
        type(item).setup(item)
        self.seed()  # what the fixtures drew may depend on which of them were there already

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """Seed a fixture of wider scope by its own name, and let it keep what it changes."""
        __tracebackhide__ = True
        if fixturedef.scope == "function":
            return (yield)
        name = f"{fixturedef.baseid}::{fixturedef.argname}{parameter_index(request)}"
        seed_everything(seed_of(self._settings.seed, name) + self.context.rank)
        try:
            return (yield)
        finally:
            self._before = Snapshot.take()
            self.seed()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Finish the fixtures of wider scope too when this process will not see another test."""
        __tracebackhide__ = True
        result = yield
        if self.retire:
            tear_down(item.session, upcoming=None)
        return result

    def _tidy(self, item: pytest.Item) -> None:
        # Long before the core would replace this rank without finishing the fixtures that live on it.
        due = not self._group.shared and self._groups % CHECK_EVERY == 0
        if due and held_groups() > HELD_GROUPS_LIMIT // 2:
            self.retire = "process groups that cannot be freed"
        leaks = [*self._before.put_back(), *self._group.leaks()]
        if not leaks:
            return
        lasting = "; ".join(leak.what for leak in leaks if leak.lasting)
        self.retire = lasting or self.retire
        end = "; its ranks are replaced" if lasting else "; put back"
        text = f"{item.name} left behind: {'; '.join(leak.what for leak in leaks)}{end}"
        if self._settings.leaks == "error":
            pytest.fail(f"{text} (--ddp-leaks=error)", pytrace=False)
        if self._settings.leaks == "warn":
            _warn(text, item)


def _warn(text: str, item: pytest.Item) -> None:
    try:
        warnings.warn_explicit(text, LeakWarning, str(item.path), (item.location[1] or 0) + 1)
    except LeakWarning as error:  # the run's filters make it an error: no frame of ours helps to understand it
        pytest.fail(f"LeakWarning: {error}", pytrace=False)
