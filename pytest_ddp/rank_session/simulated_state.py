"""What pytest has once in a process, and each simulated rank needs for itself: fixtures, output, log records, contexts.

The state of the rank that runs is where pytest looks for it. `SimulatedState.switch` exchanges it when another rank
goes on.
"""

import io
import logging
import os
import sys
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist

from pytest_ddp.context import DDPContext
from pytest_ddp.errors import SharedGlobalWarning
from pytest_ddp.items import node_id
from pytest_ddp.planning.world import World
from pytest_ddp.pytest_internals import SetUpState, parameter_index
from pytest_ddp.rank.worker import Rank
from pytest_ddp.rank_session.isolation import describe_rank, report_leaks, warn
from pytest_ddp.rank_session.leak_kind import forgiven_by
from pytest_ddp.rank_session.leaks import Snapshot
from pytest_ddp.rank_session.records import RankRecords
from pytest_ddp.rank_session.shared_globals import SharedGlobals
from pytest_ddp.seeds import random_state_kept, seed_everything, seed_of
from pytest_ddp.settings import Settings

_CHANGE_NOTHING = ("ddp", "_ddp_world_size")  # fixtures of wider scope


@dataclass
class _RankState:
    """The state of one rank while another one runs, or that of the process while this one runs."""

    setup: SetUpState
    context: DDPContext = field(default_factory=lambda: DDPContext(torch.device("cpu"), dist.HashStore()))
    subtests: list[pytest.TestReport] = field(default_factory=list)
    handlers: list[logging.Handler] = field(default_factory=list)
    printed: io.StringIO = field(default_factory=io.StringIO)


class SimulatedState:
    """Hooks that give every simulated rank its own state.

    Attributes:
        retire: what the test left behind and could not be restored; then this process must not run another test.
        rank: the rank that runs; None while none does.
    """

    def __init__(self, settings: Settings, records: RankRecords) -> None:
        self.retire = ""
        self.rank: int | None = None
        self._settings = settings
        self._records = records
        self._forgiven = forgiven_by(settings.leaks_ignore)
        self._before = Snapshot.take()
        self._session: pytest.Session | None = None
        self._globals: SharedGlobals | None = None
        self._item: pytest.Item | None = None
        self._ranks: dict[int, _RankState] = {}
        self._have_values: dict[Any, None] = {}
        self._wider = False

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Keep the session."""
        self._session, self._globals = session, SharedGlobals(session.config.rootpath)

    @property
    def context(self) -> DDPContext:
        """The value of the fixture `ddp` on the rank that runs."""
        return self._ranks[self.rank or 0].context

    def switch(self, old: int | None, new: int | None) -> None:
        """Put the state of a rank aside, and give another one its own back."""
        if old is not None:
            self._exchange(self._ranks[old])
        self.rank = new
        if new is not None:
            self._exchange(self._ranks[new])
        if self._globals is not None:
            self._globals.switch(old, new)

    def _exchange(self, state: _RankState) -> None:
        if self._session is not None:
            state.setup.swap(self._session, self._item, self._have_values)
        records = self._records
        state.subtests, records.subtests = records.subtests, state.subtests
        state.handlers, logging.root.handlers = logging.root.handlers, state.handlers

    def begin_group(self, world: World) -> None:
        """Prepare for the ranks of a world."""
        if self._session is None:
            return
        for rank in range(world.size):
            state = self._ranks.setdefault(rank, _RankState(SetUpState(self._session)))
            describe_rank(state.context, rank, world)
            state.handlers = list(logging.root.handlers)

    def begin_process(self, rank: int, variables: dict[str, str]) -> None:
        """Give a rank, in its thread, its environment and streams; the simulation keeps both for it."""
        os.environ.update(variables)
        if Rank.current.launch.capture:
            sys.stdout = sys.stderr = self._ranks[rank].printed = io.StringIO()

    def start_test(self, item: pytest.Item, shared_path: str) -> None:
        """Prepare every rank for the test that the current run sets up."""
        self.retire, self._item, self._wider = "", item, False
        seed, store = seed_of(self._settings.seed, node_id(item)), Rank.current.group.store(shared_path)
        for state in self._ranks.values():
            state.context.seed, state.context._shared_path, state.context.store = seed, shared_path, store  # noqa: SLF001
            state.setup.begin(item)
            state.handlers = list(logging.root.handlers)
        self._before = Snapshot.take()
        if self._globals is not None:
            self._globals.begin_test()

    def begin_rank(self) -> None:
        """Seed the rank that begins a test."""
        seed_everything(self.context.seed + self.context.rank)

    def set_up(self) -> None:
        """All ranks have set the test up: what fixtures of wider scope have changed is theirs."""
        if self._wider:
            self._before = Snapshot.take()

    def take_printed(self) -> str:
        """Return what the rank that runs has printed in this phase."""
        printed = self._ranks[self.rank or 0].printed
        text = printed.getvalue()
        printed.seek(0)
        printed.truncate()
        return text

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """Seed a fixture of wider scope by its own name, and let it keep what it changes."""
        __tracebackhide__ = True
        self._have_values[fixturedef] = None
        if fixturedef.scope == "function" or fixturedef.argname in _CHANGE_NOTHING:
            return (yield)
        self._wider = True
        name = f"{fixturedef.baseid}::{fixturedef.argname}{parameter_index(request)}"
        with random_state_kept():
            seed_everything(seed_of(self._settings.seed, name) + self.context.rank)
            return (yield)

    @property
    def has_set_up(self) -> bool:
        """Whether fixtures are alive on a rank."""
        return any(state.setup.has_set_up for state in self._ranks.values())

    def check_leaks(self, item: pytest.Item) -> None:
        """Restore what the test left changed, and report it as `--ddp-leaks` says."""
        self._item = None
        for text in self._globals.end_test() if self._globals else ():
            warn(text, item, SharedGlobalWarning)
        leaks = self._before.restore(self._forgiven)
        if leaks:
            self.retire = "; ".join(leak.what for leak in leaks if leak.lasting)
            report_leaks(leaks, item, self._settings.leaks)


def variables_of(rank: int, world: World, address: tuple[str, int]) -> dict[str, str]:
    """Return the variables of the environment by which processes find one another under torchrun."""
    size = str(world.size)
    ranks = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) | dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), size)
    return {**ranks, "NODE_RANK": "0", "GROUP_RANK": "0", "MASTER_ADDR": address[0], "MASTER_PORT": str(address[1])}
