"""Runs scenarios on ranks. The only file that knows how ranks are had; the judge's side of the wall.

What comes back is a value: observations of all ranks, or the outcomes of a run that broke.
"""

import json
import math
import tempfile
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from conformance.execution.fork_servers import ForkServers
from conformance.execution.outcome import Answered, Broken, Execution, HarnessError, Malformed, Observed
from conformance.execution.rank_pools import SizedRanks
from conformance.oracle.remembered import inputs_of
from conformance.protocol.case_messages import Answer, Assignment
from conformance.protocol.codec import MalformedError
from conformance.protocol.training_messages import Observation, Probe, Task
from conformance.scenarios.case import Case
from conformance.scenarios.cases import CheckpointCase, as_text
from conformance.scenarios.scenario import Scenario
from conformance.submissions.location import Location
from conformance.workload.case_numbers import draw_feed
from conformance.workload.numbers import data_seed
from pytest_ddp.errors import PytestDDPError
from pytest_ddp.outcomes.outcome import Outcome, Raised, Returned
from pytest_ddp.planning.world import World

RUN_SECONDS = 10.0
_FIRST_RUN_SECONDS = 30.0
_SLOWER = 100.0
_SLOWER_IMPORT = 10.0  # ranks import the submission all at a time, and new ones do so in the midst of grading
_PROBE_SECONDS = 120.0
_ALONGSIDE_SECONDS = 10.0  # a step; `alongside` looks for one, or some, where other threads have the interpreter


class _Run:
    """A scenario that ranks are at; what came of it is there once they are done."""

    execution: Execution


@dataclass
class Executor:
    """Runs scenarios and cases of one submission, each once: the same one again costs nothing.

    Attributes:
        ranks: where they run.
        location: the submission.
        secret: what the numbers derive from, together with each scenario's seed.
        stubs: absent packages that the submission needs a stub for.
        stubbed: what was used in place of something absent, so far.
        borrowed: torch's own implementations that a component has used so far, by its name.
        missing: functions that a component lacks which is defined in part, by its name.
        alone: components that fail only in processes which have run something before. Theirs run nothing else.
        watched: components that have hung. Their ranks are observed from then on, to end as soon as they stand still.
        executions: scenarios and cases run so far.
    """

    ranks: SizedRanks
    location: Location
    secret: str
    stubs: tuple[str, ...] = ()
    stubbed: set[str] = field(default_factory=set)
    borrowed: dict[str, set[str]] = field(default_factory=dict)
    missing: dict[str, tuple[str, ...]] = field(default_factory=dict)
    alone: set[str] = field(default_factory=set)
    watched: set[str] = field(default_factory=set)
    executions: int = 0
    _known: dict[str, Execution] = field(default_factory=dict)
    _written: dict[str, list[bytes]] = field(default_factory=dict)
    _fastest: float = math.inf
    _import_seconds: float = 0.0

    def run(self, component: str, scenario: Scenario | Case) -> Execution:
        """Run a scenario or a case with a component.

        Raises:
            HarnessError: our own code failed on a rank, or ranks could not be had.
        """
        key = self.key(component, scenario)
        if key not in self._known:
            self._known[key] = self.run_again(component, scenario)
        return self._known[key]

    def run_again(self, component: str, scenario: Scenario | Case) -> Execution:
        """Run a scenario or a case, also where it has run already; raise as `run` does."""
        if component in self.alone:
            return self.run_afresh(component, scenario)
        if isinstance(scenario, Case):
            return self._ask(component, scenario)
        with self._running(component, scenario) as run:
            pass
        return run.execution

    def run_afresh(self, component: str, scenario: Scenario | Case, *, alike: bool = False) -> Execution:
        """Run a scenario or a case on new processes, of which all hash texts alike if so asked; raise as `run` does."""
        with self.ranks.fresh() as own:
            if alike and isinstance(own.launcher, ForkServers):
                own.launcher = own.launcher.alike
            return replace(self, ranks=own, alone=set()).run_again(component, scenario)

    def isolate(self, component: str) -> None:
        """Run everything of a component in new processes from now on, and forget what was seen in others."""
        self.alone.add(component)
        self.forget(component)

    def forget(self, component: str) -> None:
        """Forget what ranks saw of a component: of one with all checks, half a gigabyte of small tensors."""
        self._known = {key: seen for key, seen in self._known.items() if not key.startswith(f"{component}: ")}

    def ahead(self, component: str, drawn: Sequence[Scenario | Case]) -> Generator[Scenario | Case]:
        """Yield each once it has run if it is a scenario: ranks are at the next one while the caller looks at this one.

        Not after a run that broke: the next one might take as long to break. Whoever does not want them all closes
        the iterator before anything else runs. Raises as `run` does.
        """
        ready: tuple[Scenario | Case, ...] = ()
        for one, then in zip_longest(drawn, drawn[1:]):
            key = self.key(component, one)
            if isinstance(one, Scenario) and key not in self._known and component not in self.alone:
                with self._running(component, one, then) as run:
                    yield from ready
                self._known[key] = run.execution
            else:
                yield from ready
            ready = (one,)
            if not isinstance(self._known.get(key), Observed):
                yield one
                ready = ()
        yield from ready

    def knows(self, component: str, scenario: Scenario | Case) -> bool:
        """Whether the scenario has run already."""
        return self.key(component, scenario) in self._known

    @staticmethod
    def key(component: str, scenario: Scenario | Case) -> str:
        """Return what tells scenarios of components apart."""
        return f"{component}: {as_text(scenario)}"

    def seed(self, scenario: Scenario | Case) -> int:
        """Return the integer that the scenario's numbers are drawn from."""
        return data_seed(self.secret, scenario)

    def look(self) -> Probe:
        """Learn on a rank what the submission offers."""
        found = self._probe("look", {}, _PROBE_SECONDS)
        if found is None:
            return Probe(error=f"importing them ended the process, or did not end within {_PROBE_SECONDS:g} s")
        self.stubs = tuple(found.stubs)
        self.missing = {name: tuple(functions) for name, functions in found.missing.items()}
        self.stubbed |= {f"package {name}" for name in found.stubs}
        return found

    def is_implemented(self, component: str) -> bool:
        """Learn on a rank whether a component does more than raise NotImplementedError."""
        found = self._probe("attempt", {"component": component}, self._deadline)
        if found is None:
            return True
        self.stubs = tuple(sorted({*self.stubs, *found.stubs}))
        self.stubbed |= {f"package {name}" for name in found.stubs}
        self._use(component, found.borrowed)
        return component not in found.unimplemented

    @contextmanager
    def _running(self, component: str, scenario: Scenario, then: Scenario | Case | None = None) -> Iterator[_Run]:
        """Let ranks run a scenario during the block; when they are done, let them join the world of the next one."""
        run, tasks = _Run(), self._tasks(component, scenario)
        seconds = self._deadline + (_ALONGSIDE_SECONDS * scenario.steps if scenario.gated else 0.0)
        with _ranks_or_an_error_of_ours():
            with self.ranks.group(self._world(component, scenario)) as group:
                group.ask("conformance.ranks.train:run", tasks, timeout=seconds)
                try:
                    yield run
                    if isinstance(then, Scenario):
                        self._written = {self.key(component, then): self._tasks(component, then)}
                finally:
                    outcomes = group.answers()
            if isinstance(then, Scenario):
                self.ranks.prepare(self._world(component, then))
        run.execution = self._seen(component, scenario, outcomes)

    def _tasks(self, component: str, scenario: Scenario) -> list[bytes]:
        """Return what each rank is asked, which may have been written down while ranks were busy."""
        if (key := self.key(component, scenario)) in self._written:
            return self._written.pop(key)
        unseeded = replace(scenario, seed=0)
        inputs = inputs_of(scenario, self.seed(scenario))
        return [Task(self.location, component, unseeded, own, self.stubs).encode() for own in inputs]

    def _seen(self, component: str, scenario: Scenario, outcomes: list[Outcome]) -> Execution:
        self.executions += 1
        if not all(isinstance(outcome, Returned) for outcome in outcomes):
            return self._broken(component, outcomes)
        observations = []
        for outcome in outcomes:
            try:
                seen = Observation.decode(outcome.body if isinstance(outcome, Returned) else b"")
            except MalformedError as error:
                return Malformed(outcome.rank, str(error))
            if missing := seen.missing(scenario):
                return Malformed(outcome.rank, f"{len(missing)} tensors are missing, {missing[0]} among them")
            observations.append(seen)
            self.stubbed.update(seen.stubbed)
            self._use(component, seen.borrowed)
        self._fastest = min(self._fastest, max(outcome.seconds for outcome in outcomes))
        return Observed(self.seed(scenario), tuple(observations))

    def _ask(self, component: str, case: Case) -> Execution:
        """Let one world after the other work on a case; they share a folder, and nothing else."""
        given = draw_feed(case, self.seed(case))
        answers: list[list[Answer]] = []
        self.executions += 1
        with tempfile.TemporaryDirectory(prefix="conformance-", dir=_disk(case)) as folder:
            for phase, feeds in enumerate(given):
                seen: list[Answer] = []
                tasks = [
                    Assignment(self.location, component, case, own, phase, folder, self.stubs).encode() for own in feeds
                ]
                world = World(len(feeds), observe=case.gated or component in self.watched)
                outcomes = self._on_ranks(world, "conformance.ranks.case:run", tasks, self._deadline)
                if not all(isinstance(outcome, Returned) for outcome in outcomes):
                    return self._broken(component, outcomes)
                for outcome in outcomes:
                    try:
                        answer = Answer.decode(outcome.body if isinstance(outcome, Returned) else b"")
                    except MalformedError as error:
                        return Malformed(outcome.rank, str(error))
                    seen.append(answer)
                    self.stubbed.update(answer.stubbed)
                    self._use(component, answer.borrowed)
                answers.append(seen)
                self._fastest = min(self._fastest, max(outcome.seconds for outcome in outcomes))
        return Answered(given, answers)

    def _use(self, component: str, borrowed: Iterable[str]) -> None:
        self.borrowed.setdefault(component, set()).update(borrowed)

    @property
    def _deadline(self) -> float:
        """Seconds until a run counts as hung: far more than any takes here, with the submission's import in it."""
        run = _FIRST_RUN_SECONDS if math.isinf(self._fastest) else max(RUN_SECONDS, _SLOWER * self._fastest)
        return run + min(_SLOWER_IMPORT * self._import_seconds, _PROBE_SECONDS)

    def _world(self, component: str, scenario: Scenario) -> World:
        observe = scenario.gated or scenario.counted or component in self.watched
        return World(scenario.world_size, observe=observe)

    def _broken(self, component: str, outcomes: list[Outcome]) -> Broken:
        broken = Broken(tuple(outcomes))
        root = broken.root
        if broken.hung:
            self.watched.add(component)
        if isinstance(root, Raised) and not root.body:
            raise HarnessError(f"rank {root.rank}: {root.traceback}")
        return broken

    def _on_ranks(self, world: World, target: str, payloads: bytes | Sequence[bytes], seconds: float) -> list[Outcome]:
        with _ranks_or_an_error_of_ours():
            return self.ranks.run(world, target, payloads, timeout=seconds)

    def _probe(self, question: str, more: dict[str, Any], seconds: float) -> Probe | None:
        """Ask one rank; None when it did not live to answer."""
        payload = json.dumps({"submission": asdict(self.location), **more}).encode()
        (outcome,) = self._on_ranks(World(1), f"conformance.ranks.probe:{question}", payload, seconds)
        if isinstance(outcome, Raised):
            raise HarnessError(outcome.traceback)
        self._import_seconds = max(self._import_seconds, outcome.seconds)
        return Probe(**json.loads(outcome.body)) if isinstance(outcome, Returned) else None


@contextmanager
def _ranks_or_an_error_of_ours() -> Iterator[None]:
    try:
        yield
    except PytestDDPError as error:
        raise HarnessError(f"no ranks to run on: {error}") from error


def _disk(case: Case) -> Path | None:
    """Return where to make the folder of a case that asks for another disk than that of temporary files."""
    wanted = isinstance(case, CheckpointCase) and case.other_disk
    memory = Path("/dev/shm")  # noqa: S108  a folder of random name is made in it
    return memory if wanted and memory.is_dir() else None
