"""Runs the jobs of a course on the nodes of a Ray cluster: a task for each job, which yields what the grader found.

Ray finds a node that has what a job requests, and reports nodes that died. Each Ray worker keeps a process that has
drawn the scenarios (see `graders`) and forks the grader of each job from it, into a sandbox, as on one machine.
"""

import pickle
import re
import socket
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

from conformance.batch.executor import Job, Outcome
from conformance.batch.graders import Graders
from conformance.batch.record import Record
from conformance.batch.shipping import Inbox, Shipment, Update, graded
from conformance.grading.grade import Grading
from pytest_ddp.errors import UsageError
from pytest_ddp.hosts.ray_connection import connect, ray_package

_OPTION = "--executor ray"
_AHEAD = 2  # times what the cluster can run is sent, so that no node waits for a submission
_REQUESTS = {"cpu": "num_cpus", "gpu": "num_gpus"}
_REQUEST = re.compile(r"(?P<name>\w+)=(?P<amount>\d+(\.\d+)?)(?P<unit>[KMG]iB)?")
_BYTES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def ray_options(request: str) -> dict[str, Any]:
    """Return Ray's options for a request such as `cpu=2,gpu=1,memory=2GiB`; other names are Ray's custom resources.

    Raises:
        UsageError: it reads otherwise.
    """
    options: dict[str, Any] = {"num_cpus": 1.0}
    resources: dict[str, float] = {}
    for one in request.split(",") if request else ():
        read = _REQUEST.fullmatch(one.strip())
        if not read or (read["name"] == "memory") != bool(read["unit"]):
            raise UsageError(f"--ray-request {one!r}: give, for example, cpu=2,gpu=1,memory=2GiB")
        name, amount = read["name"], float(read["amount"])
        if name == "memory":
            options["memory"] = int(amount * _BYTES[read["unit"]])
        elif name in _REQUESTS:
            options[_REQUESTS[name]] = amount
        else:
            resources[name] = amount
    return options | ({"resources": resources} if resources else {})


@dataclass(frozen=True)
class _Running:
    """A job that was sent; `node` is empty until a node begins with it."""

    inbox: Inbox
    node: str = ""


class RayExecutor:
    """An executor (see `executor.BatchExecutor`) for a Ray cluster.

    Args:
        grading: how submissions are graded.
        jobs: how many are sent at most; None for as many as keep the cluster busy.
        began: is called when a job begins on a node.
        options: of the task, see `ray_options`.
        address: of the cluster; None for the one that Ray finds, or else one that it starts here.
        small: whether memory is scarce.
    """

    def __init__(
        self,
        grading: Grading,
        jobs: int | None,
        began: Callable[[Record], None],
        options: Mapping[str, Any],
        address: str | None = None,
        *,
        small: bool = False,
    ) -> None:
        self._ray = ray_package(_OPTION)
        self._grading = pickle.dumps((grading, small))
        self._jobs, self._began, self._options, self._address = jobs, began, options, address
        self._waiting: deque[Job] = deque()
        self._running: dict[Any, _Running] = {}  # by Ray's stream of updates

    def __enter__(self) -> Self:
        self._connects = connect(self._ray, self._address, _OPTION)
        # A job that is lost is submitted again by the course, which counts how often.
        task = {"num_returns": "streaming", "max_retries": 0, "scheduling_strategy": "SPREAD", **self._options}
        self._task = self._ray.remote(**task)(_graded_on_node)
        return self

    def __exit__(self, *_: object) -> None:
        if self._connects:
            self._ray.shutdown()

    def submit(self, job: Job) -> None:
        """Take in a job; do not wait for it."""
        self._waiting.append(job)

    def as_completed(self) -> Iterator[tuple[Job, Outcome]]:
        """Yield each job with its outcome as soon as it has ended, until none is left; more may be submitted."""
        while self._waiting or self._running:
            yield from self._send()
            streams, _ = self._ray.wait(list(self._running), num_returns=1) if self._running else ([], [])
            for stream in streams:
                if outcome := self._outcome(stream):
                    yield self._running.pop(stream).inbox.job, outcome

    def cancel(self) -> None:
        """End all jobs, also those that run."""
        self._waiting.clear()
        for stream in self._running:
            self._ray.cancel(stream, force=True)
        self._running.clear()

    def _send(self) -> Iterator[tuple[Job, Outcome]]:
        """Send jobs until the cluster has enough of them; yield those that cannot be sent."""
        most = self._jobs or _AHEAD * self._slots()
        while self._waiting and len(self._running) < most:
            job = self._waiting.popleft()
            folder = None
            try:
                folder = job.folder()
                shipment = Shipment.of(job, folder)
            except (UsageError, OSError) as error:
                if isinstance(error, OSError) and folder is None:  # the disk is full
                    raise
                yield job, Outcome("refused", str(error))
            else:
                stream = self._task.remote(self._grading, shipment)
                self._running[stream] = _Running(Inbox(job, job.record.next_part(), folder))

    def _slots(self) -> int:
        """Return how many jobs the cluster can run at the same time; at least 1, since nodes may join."""
        there = self._ray.cluster_resources()
        return max(1, int(there.get("CPU", 0) // max(self._options["num_cpus"], 1)))

    def _outcome(self, stream: Any) -> Outcome | None:
        """Take in one update of a job; return its outcome if this was the last one."""
        running = self._running[stream]
        try:
            update: Update = self._ray.get(next(stream))
        except (self._ray.exceptions.RayError, StopIteration) as error:
            if isinstance(error, self._ray.exceptions.RayTaskError) and not isinstance(error, OSError):
                raise _refused(error) from None
            why = f"{running.node or 'a node'} was lost: {type(error).__name__}: {_first_line(error)}"
            running.inbox.note(f"conformance: {why}")
            return Outcome("lost", why)
        if not running.node:
            self._running[stream] = _Running(running.inbox, update.node)
            running.inbox.begin()
            self._began(running.inbox.job.record)
        running.inbox.take(update)
        return None if update.state == "runs" else Outcome(update.state)


def _refused(error: Any) -> UsageError:
    """Return what says that a node cannot grade: it would refuse every job."""
    if isinstance(error.cause, UsageError):
        return error.cause
    why = f"{type(error.cause).__name__}: {_first_line(error.cause)}" if error.cause else str(error)
    return UsageError(f"a Ray node cannot grade, which needs pytest-ddp on every node; then use --resume. {why}")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def _graded_on_node(grading: bytes, shipment: Shipment) -> Generator[Update]:
    """Grade a submission in a Ray worker; yield what is new."""
    node = ray_package(_OPTION).get_runtime_context().get_node_id()
    yield from graded(shipment, _graders(grading), f"{socket.gethostname()} (Ray node {node[:8]})")


@cache
def _graders(grading: bytes) -> Graders:
    """Return what forks graders in this Ray worker; it ends with the worker."""
    asked, small = pickle.loads(grading)  # noqa: S301  from the process that you started
    return Graders(asked, small=small).__enter__()
