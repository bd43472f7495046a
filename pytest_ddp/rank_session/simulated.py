"""A pytest session whose tests run on simulated ranks: threads of this process, one of which runs at a time.

The process answers for all of its ranks: the body of an answer has an answer per rank. Between two phases of a test,
no rank runs.
"""

import os
import pdb  # noqa: T100  to replace its breakpoints
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Any

import pytest
import torch.distributed as dist

from pytest_ddp.coverage import measure_coverage
from pytest_ddp.errors import UsageError
from pytest_ddp.protocol.messages import Answer, Run, SimulatedRun, encode
from pytest_ddp.protocol.phases import PhaseAnswer, SessionStart
from pytest_ddp.pytest_internals import begin_request, replace_set_trace, tear_down
from pytest_ddp.rank.worker import Failed, Rank, answer_of
from pytest_ddp.rank_session.phases import end_at_caller, run_phase, sections_of
from pytest_ddp.rank_session.session import RankPlugin, run_session
from pytest_ddp.rank_session.simulated_state import SimulatedState, variables_of
from pytest_ddp.schedule_text import format_schedule
from pytest_ddp.settings import Settings
from pytest_ddp.simulated import Clamped, PeerLost, RankStopped, Schedule, SimulatedWorld, Simulation
from pytest_ddp.simulated.problems import RankKilled

_REPORTS_OF_ONE_PLACE = 8
_ENDED_BY = {RankStopped.__name__: "stopped", RankKilled.__name__: "killed"}


def host(body: bytes) -> None:
    """Run a pytest session whose loop serves the controller."""
    start = SessionStart.decode(body)
    os.chdir(start.cwd)
    with measure_coverage(start.coverage):
        run_session(start, SimulatedPlugin)


class SimulatedGroups:
    """The simulated ranks of this process; a run that names another group replaces them."""

    is_settled = False  # no later group takes over connections

    def __init__(self, state: SimulatedState) -> None:
        self._state = state
        self._name = ""
        self._world: SimulatedWorld | None = None
        self._stores: dict[str, dist.Store] = {}

    @property
    def world(self) -> SimulatedWorld:
        """The ranks."""
        if self._world is None:
            raise RuntimeError("no simulated ranks")
        return self._world

    def enter(self, run: Run) -> None:
        """Make the ranks of the group that a run names, unless they are there; end those of any other."""
        if run.group == self._name:
            return
        self.close()
        self._state.begin_group(run.world)
        reduction: Any = run.world.reduction  # `Request` has checked it
        self._world, self._name = SimulatedWorld(run.world.size, reduction, self._state.switch), run.group
        address = (Rank.current.launch.store[0], run.master_port)
        self._world.run(lambda rank: self._state.begin_process(rank, variables_of(rank, run.world, address)))

    def store(self, name: str) -> dist.Store:
        """Return a store that the ranks share."""
        return self._stores.setdefault(name, dist.HashStore())

    def close(self) -> None:
        """End the ranks."""
        world, self._world, self._name = self._world, None, ""
        self._stores.clear()
        if world is not None:
            world.close()


class SimulatedPlugin(RankPlugin):
    """Turns a pytest session into that of all simulated ranks."""

    state: Any

    def __init__(self, rank: Rank, config: pytest.Config, settings: Settings) -> None:
        super().__init__(rank, config, settings)
        self.groups = SimulatedGroups(self.state)
        rank.group = self.groups  # type: ignore[assignment]  # has the same face
        self.ended: dict[int, str] = {}
        self._is_told = False
        self._failed_at: dict[object, list[int]] = {}
        self._failed: dict[int, Failed] = {}
        self._like: dict[int, tuple[int, str]] = {}

    def new_state(self, settings: Settings) -> Any:
        """Return the hooks that give every rank its own state."""
        return SimulatedState(settings, self.records)

    def more_hooks(self, start: SessionStart) -> list[object]:  # noqa: ARG002  as in the base class
        """Return the other plugins of the session."""
        return [self.collection, self.records, _Hooks(self)]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Finish what is still set up on ranks, and end them."""
        if self.state.has_set_up:
            self.groups.world.run(lambda _: tear_down(session, None), backwards=True)
        self.groups.close()

    def on_ranks(self, function: Callable[[], bytes], **simulation: Any) -> bytes:
        """Call a function on each rank, with a `schedule` and `faults`; return the answers of all ranks."""
        run = self._run(function, Clamped(simulation.get("schedule", ())), _plan(simulation.get("faults", ())))
        return run.encode()

    def set_up(self) -> bytes:
        """Set the test up on all ranks."""
        run = self._run(self._set_up, check_the_end=False)
        self.state.set_up()
        return run.encode()

    def _set_up(self) -> bytes:
        begin_request(self.item)
        self.state.begin_rank()
        return self.report("setup")

    def tear_down(self, upcoming: pytest.Item | None) -> Callable[..., bytes]:
        """Tear the test down on all ranks, the last one first: they undo changes that each made to a common object."""
        item = self.item
        run = self._run(lambda: self.answer(run_phase(item, "teardown", nextitem=upcoming)), backwards=True)
        call = pytest.CallInfo.from_call(partial(self.state.check_leaks, item), "teardown")
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        if report.failed:
            run.answers[0] = answer_of(partial(self.answer, report), 0)
        return run.encode

    def answer(self, report: pytest.TestReport, **left: Any) -> bytes:
        """Add what the rank has printed to the answer for a phase; fail as another rank did that has a report."""
        rank = self.state.rank
        if text := self.state.take_printed():
            report.sections.append((f"Captured stdout+stderr {report.when}", text))
        if rank in self._like:
            other, message = self._like[rank]
            failed = self._failed[other]
            raise Failed(failed.kind, message, failed.text, PhaseAnswer(sections=sections_of(report)).encode())
        try:
            return super().answer(report, **left)
        except Failed as failed:
            self._failed[rank] = failed
            raise

    def shown(self, error: BaseException) -> BaseException:
        """Return the problem in place of the exception that ends all ranks, on one of the ranks that it concerns."""
        problem = self.groups.world.problem
        if not isinstance(error, RankStopped) or problem is None or self._is_told:
            return error
        if problem.ranks and self.state.rank not in problem.ranks:
            return error
        self._is_told = True
        end_at_caller(error)
        shown: type[AssertionError] = type(type(problem).__name__, (AssertionError,), {"__module__": "builtins"})
        return shown(problem.text).with_traceback(error.__traceback__)

    def is_shown_already(self, error: Exception) -> bool:
        """Whether enough ranks have failed at the same place: pytest would take long to format all failures."""
        if self.item.get_closest_marker("xfail"):  # pytest decides about each
            return False
        place, rank = (type(error), _last_line(error.__traceback__)), self.state.rank
        known = self._failed_at.setdefault(place, [])
        known.append(rank)
        if len(known) <= _REPORTS_OF_ONE_PLACE:
            return False
        self._like[rank] = known[0], str(error)
        return True

    def _run(
        self,
        function: Callable[[], bytes],
        schedule: Schedule | None = None,
        faults: Sequence[Any] = (),
        *,
        check_the_end: bool = True,
        backwards: bool = False,
    ) -> "_Run":
        """Call a function on each rank; return what became of them."""
        self._is_told, began, printed = False, perf_counter(), []
        for of_last_run in (self.ended, self._failed_at, self._failed, self._like):
            of_last_run.clear()

        def on_rank(rank: int) -> Answer:
            answer = replace(answer_of(partial(self._showing, function), rank), seconds=perf_counter() - began)
            printed.append(self.state.take_printed())
            ended = self.ended.get(rank, _ENDED_BY.get(answer.kind))
            if ended is not None:
                answer = Answer(rank, ended)
            if answer.outcome != "returned":
                raise _NotReturned(answer)
            return answer

        world = self.groups.world
        simulation = world.run(on_rank, schedule, faults, check_the_end=check_the_end, backwards=backwards)
        sys.stdout.write("".join(printed))
        return _Run.of(simulation, told=self._is_told)

    def _showing(self, function: Callable[[], bytes]) -> bytes:
        try:
            return function()
        except RankStopped as stop:
            raise self.shown(stop) from None


class _NotReturned(Exception):  # noqa: N818  an outcome
    """Raised on a rank whose answer is not "returned": no other rank may wait for it any more."""


@dataclass
class _Run:
    """The answers of all ranks, in rank order, and the choices of the schedule."""

    answers: list[Answer]
    choices: Sequence[int]

    @classmethod
    def of(cls, simulation: Simulation, *, told: bool) -> "_Run":
        """Take the answers from a simulation; unless it is told yet, one rank gets the problem."""
        answers = [
            answer or (simulation.errors[rank].args[0] if rank in simulation.errors else Answer(rank, "stopped"))
            for rank, answer in enumerate(simulation.results)
        ]
        problem = simulation.problem
        if problem is not None and not told:
            rank = min(problem.ranks, default=0)
            answers[rank] = Answer(rank, "raised", kind=type(problem).__name__, message=problem.text)
        return cls(answers, simulation.choices)

    def encode(self, **left: Any) -> bytes:
        """Return the run as bytes; `left` are fields about the whole test, which travel with rank 0's answer."""
        if left:
            first = self.answers[0]
            self.answers[0] = replace(first, body=replace(PhaseAnswer.decode(first.body), **left).encode())
        head = encode(SimulatedRun(format_schedule(self.choices)))
        return b"".join([head, *map(encode, self.answers)])


def _plan(faults: Any) -> Sequence[Any]:
    """Return the faults of a plan, which may be a single one."""
    return faults if isinstance(faults, Sequence) else (faults,)


def _last_line(frame: TracebackType | None) -> tuple[str, int] | None:
    """Return the file and the line that a traceback ends at."""
    place = None
    while frame is not None:
        place, frame = (frame.tb_frame.f_code.co_filename, frame.tb_lineno), frame.tb_next
    return place


class _Hooks:
    """Hooks around the phases of each rank."""

    def __init__(self, plugin: SimulatedPlugin) -> None:
        self._plugin = plugin

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Refuse breakpoints."""
        pdb.set_trace = _refuse_breakpoint
        replace_set_trace(_refuse_breakpoint)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        """Let a problem of the communication be the exception of the rank; a rank that it only stops has no report."""
        __tracebackhide__ = True
        try:
            return (yield)
        except RankStopped as stop:
            shown = self._plugin.shown(stop)
            if shown is stop:
                self._plugin.ended[self._plugin.state.rank] = "stopped"
                return None
            raise shown from None
        except RankKilled:
            self._plugin.ended[self._plugin.state.rank] = "killed"
            return None
        except Exception as error:
            if isinstance(error, PeerLost):
                end_at_caller(error)
            if self._plugin.is_shown_already(error):
                return None
            raise

    pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


def _refuse_breakpoint(*_: object, **__: object) -> None:
    __tracebackhide__ = True
    raise UsageError(
        "breakpoint() on a simulated rank: a debugger would have one terminal for all ranks; print, or run the test on "
        'two real ranks, with backend="gloo" and --ddp-pdb-rank=0'
    )
