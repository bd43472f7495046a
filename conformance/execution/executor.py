"""Runs scenarios and cases on ranks. The only file that knows how ranks are had; the judge's side of the wall.

What comes back is a value: the answers of all ranks, or the outcomes of a run that broke.
"""

import ctypes
import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest

from conformance.execution.asked import Asked
from conformance.execution.deadlines import IMPORT_SECONDS, Deadlines
from conformance.execution.fork_servers import RankServers
from conformance.execution.outcome import (
    Broken,
    Execution,
    HarnessError,
    Malformed,
    Observed,
    decoded,
    forget_decoded,
    is_of_submission,
    why_no_answer,
)
from conformance.execution.rank_pools import SizedRanks, needs_new_connections
from conformance.execution.simulated_ranks import SimulatedRanks
from conformance.protocol.codec import MalformedError
from conformance.protocol.explored import Explored
from conformance.protocol.messages import Probe, Task
from conformance.scenarios.drawn import Drawn
from conformance.submissions.contract import Contract
from conformance.submissions.location import Location
from conformance.workload.numbers import data_seed
from pytest_ddp.errors import LackError, PytestDDPError
from pytest_ddp.outcomes.failure import failures
from pytest_ddp.outcomes.outcome import Outcome, Raised, Returned
from pytest_ddp.planning.world import World

KEPT_BYTES = 2**25
_TARGET = "conformance.ranks.run:run"
_EXPLORATION = 3  # it takes longer than a run by this factor, at most


@dataclass
class _Run:
    """What ranks carry out; their outcomes are there once they are done, of one world after the other."""

    answered: list[list[Outcome]] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether all ranks have sent something."""
        return all(isinstance(outcome, Returned) for outcomes in self.answered for outcome in outcomes)


@dataclass
class Executor:
    """Runs scenarios and cases of one submission, each once: the same one again costs nothing."""

    ranks: SizedRanks
    location: Location
    secret: str  # the numbers derive from it and from each scenario's seed
    import_limit: float = IMPORT_SECONDS  # seconds that the first import of the submission may take
    stubs: tuple[str, ...] = ()  # absent packages that the submission needs a stub for
    stubbed: set[str] = field(default_factory=set)  # what was used in place of something absent, so far
    borrowed: dict[str, set[str]] = field(default_factory=dict)  # torch's own implementations used, by component
    missing: dict[str, tuple[str, ...]] = field(default_factory=dict)  # functions that a component lacks, by its name
    not_callable: dict[str, str] = field(default_factory=dict)  # why a function cannot be called, by component
    not_implemented: dict[str, str] = field(default_factory=dict)  # which function raises that, by component
    alone: set[str] = field(default_factory=set)  # components that fail only in used processes: each run has new ones
    watched: set[str] = field(default_factory=set)  # components that hung: ranks are observed, to end once they stall
    executions: int = 0  # scenarios and cases run so far
    afresh: bool = False  # whether each run has new processes
    simulated: "Executor | None" = None  # runs what can be simulated first, if somebody asked for that
    kept_bytes: float = KEPT_BYTES  # answers of ranks that are kept for checks that draw the same
    _contracts: dict[str, Contract] = field(default_factory=dict)  # by component; of a pair, with one wrapper
    _known: dict[str, Execution] = field(default_factory=dict)
    _kept: int = 0
    _asked_ahead: dict[str, list[list[bytes]]] = field(default_factory=dict)
    _deadlines: Deadlines = field(default_factory=Deadlines)

    def run(self, component: Asked, drawn: Drawn) -> Execution:
        """Run a scenario or a case with a component.

        Raises:
            HarnessError: our own code failed on a rank, or ranks could not be had.
            LackError: this machine lacks something that the submission needs.
        """
        key = self.key(component, drawn)
        if key not in self._known:
            self._keep(key, self.run_again(component, drawn))
        return self._known[key]

    def run_again(self, component: Asked, drawn: Drawn) -> Execution:
        """Run a scenario or a case, also where it has run already; raise as `run` does."""
        if component.name in self.alone:
            return self.run_afresh(component, drawn)
        try:
            with self._running(component, drawn) as run:
                pass
            return self._seen(component, drawn, run)
        except HarnessError:
            if self.afresh:
                raise
            return self.run_afresh(component, drawn)

    def run_afresh(self, component: Asked, drawn: Drawn, *, alike: bool = False) -> Execution:
        """Run a scenario or a case on new processes, of which all hash texts alike if so asked; raise as `run` does.

        After an error of ours, run it once more when all other ranks have ended: one may have started so many processes
        that there can be no more.
        """
        try:
            return self._run_afresh(component, drawn, alike=alike)
        except HarnessError:
            self.ranks.close()
            if isinstance(self.ranks.launcher, RankServers):
                self.ranks.launcher.wait_until_empty()
            return self._run_afresh(component, drawn, alike=alike)

    def _run_afresh(self, component: Asked, drawn: Drawn, *, alike: bool) -> Execution:
        with self.ranks.fresh() as own:
            if alike and isinstance(own.launcher, RankServers):
                own.launcher = own.launcher.alike
            return replace(self, ranks=own, alone=set(), afresh=True).run_again(component, drawn)

    def isolate(self, component: str) -> None:
        """Run everything of a component in new processes from now on, and forget what was seen in others."""
        self.alone.add(component)
        self.forget(component)

    def forget(self, component: str) -> None:
        """Forget what ranks saw of a component, and end those that few components have, such as simulated ones."""
        self.ranks.close_others()
        if self.simulated:
            self.simulated.forget(component)
        forget_decoded()
        self._known = {key: seen for key, seen in self._known.items() if not key.startswith(f"{component}: ")}
        self._kept = sum(seen.size for seen in self._known.values())
        give_back_memory()

    def on(self, ranks: SizedRanks) -> "Executor":
        """Return an executor that runs the same submission on other ranks, and has run nothing yet."""
        deadlines = Deadlines(import_seconds=self._deadlines.import_seconds)
        other = replace(self, ranks=ranks, alone=set(), watched=set(), executions=0, _deadlines=deadlines)
        return replace(other, _known={}, _kept=0, _asked_ahead={})

    def ahead(self, component: Asked, drawn: Sequence[Drawn]) -> Generator[Drawn]:
        """Yield each when it has run; meanwhile the ranks carry out the next one.

        After a run that broke, the next one does not start early: it might take as long to break. Close the iterator
        before anything else runs. Raises as `run` does.
        """
        told: Iterator[Drawn] = iter(())
        for one, following in zip_longest(drawn, drawn[1:]):
            key = self.key(component, one)
            then = None if following is None or self.knows(component, following) else following
            if key in self._known or component.name in self.alone:
                yield from told
                told = iter((one,))
            else:
                try:
                    with self._running(component, one, then) as run:
                        yield from told
                    told = self._told(component, one, run)
                    if run.is_whole:  # it is looked at while ranks carry out the next one
                        continue
                    yield from told
                except HarnessError:
                    yield from told
                    self._keep(key, self.run_afresh(component, one))
                    told = iter((one,))
            if not isinstance(self._known.get(key), Observed):
                yield from told
        yield from told

    def _told(self, component: Asked, drawn: Drawn, run: _Run) -> Iterator[Drawn]:
        """Look at what came of a run; yield what was run."""
        self._keep(self.key(component, drawn), self._seen(component, drawn, run))
        yield drawn

    def explore(self, component: Asked, drawn: Drawn) -> Explored | None:
        """Run a scenario on simulated ranks in every order; return what came of it, None if they did not answer."""
        with _ranks_or_an_error_of_ours(), self._folder(component, drawn) as folder:
            (tasks,) = self._asked(component, drawn, folder)
            ranks = self.ranks.other(SimulatedRanks)
            return ranks.explore(tasks, timeout=_EXPLORATION * self._deadlines.of(drawn))

    def knows(self, component: Asked, drawn: Drawn) -> bool:
        """Whether this has run already."""
        return self.key(component, drawn) in self._known

    @staticmethod
    def key(component: Asked, drawn: Drawn) -> str:
        """Return what tells scenarios and cases of components apart."""
        return f"{component.name}: {drawn.text}"

    def seed(self, drawn: Drawn) -> int:
        """Return the integer that the numbers are drawn from."""
        return data_seed(self.secret, drawn)

    def look(self, contracts: Iterable[Contract]) -> Probe:
        """Learn on a rank what the submission offers of these components; raise as `run` does."""
        asked = {"submission": asdict(self.location), "contracts": [asdict(contract) for contract in contracts]}
        with _ranks_or_an_error_of_ours():
            payload = json.dumps(asked).encode()
            seen = self.ranks.run(World(1), "conformance.ranks.probe:look", payload, timeout=self.import_limit)
        (outcome,) = self.ranks.sandbox.explained(seen)
        self._deadlines.import_seconds = max(self._deadlines.import_seconds, outcome.seconds)
        found = self._probe(outcome)
        if found is None:
            return Probe(error=why_no_answer(outcome, self.location))
        if "ModuleNotFoundError" in found.error and self.location.not_imported:
            return replace(found, error=f"{found.error}\n{self.location.not_imported}")
        self.missing = {name: tuple(functions) for name, functions in found.missing.items()}
        self.not_callable = dict(reversed(found.wrong_signatures))  # the first function of each
        return found

    def is_implemented(self, component: Asked) -> bool:
        """Learn on ranks whether a component does more than raise NotImplementedError; raise as `run` does.

        From then on, a pair is run with its first wrapper that does more, too.
        """
        return any(self._is_implemented(component, contract) for contract in component.contract.alternatives)

    def contract(self, component: Asked) -> Contract:
        """Return the contract that ranks are asked with: a pair has one wrapper."""
        return self._contracts.get(component.name, component.contract)

    def _is_implemented(self, component: Asked, contract: Contract) -> bool:
        self._contracts[component.name], drawn = contract, component.simplest
        with _ranks_or_an_error_of_ours(), self._folder(component, drawn) as folder:
            for tasks in self._asked(component, drawn, folder):
                world, seconds = self._world(component, drawn, len(tasks)), self._deadlines.of(drawn)
                for outcome in self.ranks.run(world, "conformance.ranks.probe:attempt", tasks, timeout=seconds):
                    found = self._probe(outcome)
                    if found is None:
                        return True
                    self._use(component, found.borrowed)
                    if found.unimplemented:
                        self.not_implemented[component.name] = found.unimplemented
                        return False
        return True

    def _probe(self, outcome: Outcome) -> Probe | None:
        """Return what a rank has found; None if the submission kept it from an answer. Raise as `run` does."""
        if isinstance(outcome, Raised) and not is_of_submission(outcome, self.location):
            raise HarnessError(outcome.traceback)
        try:
            found = Probe.decode(outcome.body if isinstance(outcome, Returned) else b"")
        except MalformedError:
            return None
        self.stubs = tuple(sorted({*self.stubs, *found.stubs}))
        self.stubbed |= {f"package {name}" for name in found.stubs}
        return found

    @contextmanager
    def _running(self, component: Asked, drawn: Drawn, then: Drawn | None = None) -> Iterator[_Run]:
        """Let ranks carry this out during the block; when they are done, let them join the world of the next one."""
        run, ranks = _Run(), self._ranks(drawn)
        with _ranks_or_an_error_of_ours(), self._folder(component, drawn) as folder:
            ahead = self._asked_ahead.pop(self.key(component, drawn), None)
            for phase, tasks in enumerate(ahead or self._asked(component, drawn, folder)):
                world = self._world(component, drawn, len(tasks))
                with ranks.group(world) as group:
                    group.ask(_TARGET, tasks, timeout=self._deadlines.of(drawn))
                    try:
                        if not phase:
                            yield run
                            self._ask_ahead(component, then)
                    finally:
                        run.answered.append(group.answers())
                if needs_new_connections(group, run.answered[-1]):
                    run.answered[-1] = ranks.run(world, _TARGET, tasks, timeout=self._deadlines.of(drawn))
                if not run.is_whole:
                    break
            if then is not None:
                self.ranks.prepare(self._world(component, then, then.worlds[0]))

    def _ask_ahead(self, component: Asked, drawn: Drawn | None) -> None:
        """Keep what ranks will be asked next, unless that names a folder."""
        self._asked_ahead.clear()
        if drawn is not None and not component.shares_files:
            self._asked_ahead[self.key(component, drawn)] = list(self._asked(component, drawn, ""))

    def _asked(self, component: Asked, drawn: Drawn, folder: str) -> Iterator[list[bytes]]:
        """Return what each rank is asked, in one world after the other."""
        contract = self.contract(component)
        for phase, given in enumerate(component.numbers(drawn, self.seed(drawn))):
            yield [
                Task(self.location, contract, component.exercise, drawn, own, phase, folder, self.stubs).encode()
                for own in given
            ]

    def _seen(self, component: Asked, drawn: Drawn, run: _Run) -> Execution:
        self.executions += 1
        sent: list[tuple[bytes, ...]] = []
        for outcomes in run.answered:
            returned = [outcome for outcome in outcomes if isinstance(outcome, Returned)]
            if len(returned) < len(outcomes):
                return self._broken(component, drawn, outcomes)
            for outcome in returned:
                if wrong := self._wrong(component, drawn, outcome.body):
                    return Malformed(outcome.rank, wrong)
            sent.append(tuple(outcome.body for outcome in returned))
            self._deadlines.fastest = min(self._deadlines.fastest, max(outcome.seconds for outcome in outcomes))
        return Observed(self.seed(drawn), component.answer, tuple(sent))

    def _wrong(self, component: Asked, drawn: Drawn, sent: bytes) -> str:
        """Take in what a rank has sent; return what is wrong with it, if anything is."""
        try:
            seen = decoded(component.answer.decode, sent)
        except MalformedError as error:
            return str(error)
        self.stubbed.update(seen.stubbed)
        self._use(component, seen.borrowed)
        missing = seen.missing(drawn)
        return f"{len(missing)} of its parts are missing, {missing[0]} among them" if missing else ""

    def _folder(self, component: Asked, drawn: Drawn) -> AbstractContextManager[str]:
        """Give a folder that all ranks share, where it is asked for on another disk than that of temporary files."""
        if not component.shares_files:
            return nullcontext("")
        return self.ranks.sandbox.folder(in_memory=getattr(drawn, "other_disk", False))

    def _ranks(self, drawn: Drawn) -> SizedRanks:
        """Return what gives the ranks that carry this out."""
        return self.ranks.other(SimulatedRanks) if getattr(drawn, "simulated", False) else self.ranks

    def _use(self, component: Asked, borrowed: Iterable[str]) -> None:
        self.borrowed.setdefault(component.name, set()).update(borrowed)

    def _keep(self, key: str, execution: Execution) -> None:
        """Remember what came of a run for checks that draw the same; forget the largest where all take too much."""
        self._known[key] = execution
        self._kept += execution.size
        while self._kept > self.kept_bytes and len(self._known) > 1:
            largest = max((one for one in self._known if one != key), key=lambda one: self._known[one].size)
            self._kept -= self._known.pop(largest).size

    def _world(self, component: Asked, drawn: Drawn, size: int) -> World:
        return World(size, observe=drawn.observed or component.name in self.watched)

    def _broken(self, component: Asked, drawn: Drawn, outcomes: list[Outcome]) -> Execution:
        if not failures(outcomes):
            return Malformed(outcomes[0].rank, "it says that it has skipped its task")
        broken = Broken(tuple(self.ranks.sandbox.explained(outcomes)))
        root = broken.root
        if broken.lacking:
            raise LackError(broken.lacking)
        if broken.hung:
            self.watched.add(component.name)
        if isinstance(root, Raised) and not is_of_submission(root, self.location):
            if not self.afresh:  # an earlier run may have broken the process
                return self.run_afresh(component, drawn)
            raise HarnessError(f"rank {root.rank}: {root.traceback}")
        return broken


def give_back_memory() -> None:
    """Give memory that was freed back to the system: glibc keeps it."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


@contextmanager
def _ranks_or_an_error_of_ours() -> Iterator[None]:
    try:
        yield
    except PytestDDPError as error:
        raise HarnessError(f"no ranks to run on: {error}") from error
