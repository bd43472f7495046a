"""The target of a process that hosts all ranks of a world: each is a thread of it (see `pytest_ddp.simulated`).

Each rank has its own copies of the submission's modules, so ranks share neither the globals of these modules nor the
attributes of their classes. They share whatever else a process has once, such as a registry of torch, and hash texts
alike.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType

import torch.distributed as dist

from conformance.protocol.codec import join, split
from conformance.protocol.explored import Explored
from conformance.protocol.messages import Answer, Task
from conformance.ranks import stand_ins
from conformance.ranks.boundary import boundary, stage
from conformance.ranks.integrity import require_unchanged
from conformance.ranks.loading import load, load_again
from conformance.ranks.run import exercise
from conformance.ranks.torch_builtins import noticing
from conformance.submissions.location import Location
from conformance.workload.numbers import Tensors
from pytest_ddp.rank.collective_hooks import announce
from pytest_ddp.simulated import Clamped, Launch, PeerLost, ProblemFound, SimulatedWorld, Simulation
from pytest_ddp.simulated.exploration import explore

_MOST_RUNS = 60
_MOST_TO_SHRINK = 20


def run(payload: bytes) -> bytes:
    """Carry out the encoded tasks of all ranks of a world; return their encoded answers."""
    tasks = [Task.decode(one) for one in split(payload)]
    with boundary(tasks[0].submission):
        answers = [answer.encode() for answer in _carry_out(tasks)]
        require_unchanged()
        return join(answers)


def _carry_out(tasks: Sequence[Task]) -> list[Answer]:
    """Run the exercise on simulated ranks; raise the first problem, or what the first rank raised."""
    copies = _copies(tasks[0], len(tasks))
    with noticing() as used, SimulatedWorld(len(tasks), on_switch=copies.switch) as world:
        order = Clamped(tasks[0].drawn.order)
        seen = world.run(lambda rank: exercise(tasks[rank], copies.adapters(rank)), order, faults=[_tell])
    with stage("training on simulated ranks"):
        _raise_for(seen)
    told = {"stubbed": sorted(stand_ins.used), "borrowed": sorted(used)}
    return [replace(answer, **told) for answer in seen.results]


def run_in_every_order(payload: bytes) -> bytes:
    """Carry out the encoded tasks of a world in every order that a rank can tell; return an encoded `Explored`.

    It stops at the first order that fails or gives other bits, and after a number of runs.
    """
    tasks = [Task.decode(one) for one in split(payload)]
    with boundary(tasks[0].submission):
        found = _explored(tasks).encode()
        require_unchanged()
        return found


def _explored(tasks: Sequence[Task]) -> Explored:
    copies = _copies(tasks[0], len(tasks))

    def train() -> Tensors:
        rank = dist.get_rank()
        return exercise(tasks[rank], copies.adapters(rank)).tensors

    seen = explore(train, len(tasks), most=_MOST_RUNS, most_to_shrink=_MOST_TO_SHRINK, on_switch=copies.switch)
    if seen.certificate is not None:
        return Explored(seen.runs, seen.orders, seen.certificate.operations, finished=True)
    return Explored(seen.runs, seen.orders, found=seen.finding.choices if seen.finding else None)


def _raise_for(seen: Simulation) -> None:
    """Raise the problem, or the exception of a rank that failed by itself, if there is any."""
    if seen.problem is not None:
        raise ProblemFound(seen.problem)
    for error in sorted(seen.errors.values(), key=lambda error: isinstance(error, PeerLost)):
        raise error


def _tell(launch: Launch) -> None:
    """Let the rank that launches an operation note it."""
    announce(launch.fingerprint())


@dataclass
class _Copies:
    """The submission's modules, once for each rank: adapters, and all modules by name."""

    submission: Location
    _of: dict[int, tuple[ModuleType, dict[str, ModuleType]]] = field(default_factory=dict)

    def adapters(self, rank: int) -> ModuleType:
        """Return the adapters of the rank that runs; import them at first."""
        if rank not in self._of:
            with stage("import of the adapters"):
                self._of[rank] = load_again(self.submission)
        return self._of[rank][0]

    def switch(self, _: int | None, following: int | None) -> None:
        """Let imports find the modules of the rank that runs next."""
        if following in self._of:
            sys.modules.update(self._of[following][1])


_known: dict[int, _Copies] = {}  # by world size: a submission may keep the size for good


def _copies(task: Task, size: int) -> _Copies:
    with stage("import of the adapters"):
        load(task.submission, task.stubs)
    return _known.setdefault(size, _Copies(task.submission))
