"""Run a function on N ranks, inside a process group: start them on this machine, or use those of a torchrun job.

There are three ways:

- *spawn*: `torch.multiprocessing.spawn` starts the processes and reports failures.
- *processes*: plain `multiprocessing` processes. The code below shows what spawn does.
- In a torchrun (or srun) job, the processes exist already, and the function runs in each of them.

In the first two ways, this process keeps the store through which the ranks find each other, at a port that the system
chooses. It sets the environment variables that torchrun would set. When this process ends, in any way, its ranks end.

Source: PyTorch's documentation of `torch.multiprocessing`; prctl(2), PR_SET_PDEATHSIG.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Literal

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from reference.communication.process_group import cleanup, setup

Function = Callable[..., object]
_GRACE_SECONDS = 2.0  # after a failure, for the other ranks to report theirs
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Job:
    """The data that a started process needs, besides its rank."""

    world_size: int
    port: int
    parent: int
    function: Function
    arguments: tuple[object, ...]
    backend: str | None
    device: str | None


def launch(
    function: Function,
    world_size: int | None,
    *arguments: object,
    start: Literal["spawn", "processes"] = "spawn",
    backend: str | None = None,
    device: str | None = None,
) -> None:
    """Run `function(*arguments)` on every rank of a process group, and wait for all of them.

    Args:
        function: importable by name in a new interpreter.
        world_size: number of ranks to start. In a torchrun job: None, or the job's number of ranks.
        arguments: passed to the function on every rank. They are pickled, except in a torchrun job.
        start: how to start ranks on this machine.
        backend: as for `process_group.setup`.
        device: as for `process_group.setup`.

    Raises:
        RuntimeError: a rank failed; the message has its traceback. The other ranks are killed.
        ValueError: `world_size` is missing, or differs from the job's.
    """
    if in_job():
        _check_job(world_size)
        _run_inside_group(function, arguments, backend, device)
        return
    if world_size is None or world_size < 1:
        raise ValueError(f"world size {world_size}: outside a torchrun job, pass the number of ranks, 1 or more")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = Job(world_size, store.port, os.getpid(), function, arguments, backend, device)
    (_spawn if start == "spawn" else _start_processes)(job)


def in_job() -> bool:
    """Whether this process is a rank of a job that torchrun, srun or `launch` has started."""
    return "RANK" in os.environ or "SLURM_STEP_NODELIST" in os.environ  # a batch script has SLURM_PROCID, but no step


def _check_job(world_size: int | None) -> None:
    job = int(os.environ.get("WORLD_SIZE") or os.environ["SLURM_NTASKS"])
    if world_size not in (None, job):
        raise ValueError(
            f"world size {world_size} differs from this job's {job} ranks: leave it out, or start {world_size} ranks"
        )


def _run_inside_group(function: Function, arguments: Sequence[object], backend: str | None, device: str | None) -> None:
    setup(backend, device)
    function(*arguments)
    cleanup()  # not after a failure: this rank must report its failure before its peers see that it has left


def _run_rank(rank: int, job: Job) -> None:
    """The body of a started process."""
    _end_with(job.parent)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(job.world_size),
        "LOCAL_WORLD_SIZE": str(job.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(job.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the parent has the store, so rank 0 connects to it like the others
    }
    if job.world_size > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # as torchrun does: otherwise every rank would use every core
    _run_inside_group(job.function, job.arguments, job.backend, job.device)


def _spawn(job: Job) -> None:
    context = mp.spawn(_run_rank, (job,), nprocs=job.world_size, join=False)  # type: ignore[no-untyped-call]  # torch's own
    try:
        while not context.join(grace_period=_GRACE_SECONDS):
            pass
    except (ProcessRaisedException, ProcessExitedException) as error:
        raise RuntimeError(str(error).strip()) from error
    finally:
        _kill(context.processes)


def _start_processes(job: Job) -> None:
    fresh = multiprocessing.get_context("spawn")  # a fork would copy locks of torch's threads, and break CUDA
    ranks: dict[Connection, BaseProcess] = {}
    try:
        for rank in range(job.world_size):
            receiver, sender = fresh.Pipe(duplex=False)
            ranks[receiver] = fresh.Process(target=_report, args=(sender, rank, job), name=f"rank {rank}")
            ranks[receiver].start()
            sender.close()  # now only the rank has this end of the pipe, and it closes when the rank ends
        if failures := _join(ranks):
            raise RuntimeError("\n\n".join(failures))
        for process in ranks.values():
            process.join()
    finally:
        _kill(list(ranks.values()))


def _report(sender: Connection, rank: int, job: Job) -> None:
    """Run a rank, then send None; if it failed, send the time and the traceback."""
    try:
        _run_rank(rank, job)
    except Exception:  # noqa: BLE001  # the function may raise any exception
        sender.send((time.monotonic(), f"rank {rank} failed:\n{traceback.format_exc()}"))
        raise SystemExit(1) from None
    sender.send(None)


def _join(ranks: Mapping[Connection, BaseProcess]) -> list[str]:
    """Wait until all ranks are done, or until the grace period after a failure. Returns failures, first one first."""
    failures: list[tuple[float, str]] = []
    waiting = list(ranks)
    while waiting and (ready := wait(waiting, timeout=_GRACE_SECONDS if failures else None)):
        for receiver in [receiver for receiver in waiting if receiver in ready]:
            waiting.remove(receiver)
            failure = _receive(receiver, ranks[receiver])
            if failure is not None:
                failures.append(failure)
    return [text for _, text in sorted(failures)]


def _receive(receiver: Connection, process: BaseProcess) -> tuple[float, str] | None:
    """The time and the text of a rank's failure, or None. A rank that died without sending has failed now."""
    try:
        failure: tuple[float, str] | None = receiver.recv()
    except EOFError:
        now = time.monotonic()
        process.join()
        return now, f"{process.name} ended before it was done, with exit code {process.exitcode} (below 0: a signal)"
    return failure


def _kill(processes: Sequence[BaseProcess]) -> None:
    """Kill the ranks that are left, after a failure of another rank or an interruption of this process."""
    for process in processes:
        if process.pid is not None:  # None if it could not be started
            process.kill()
            process.join()


def _end_with(parent: int) -> None:
    """Make this process end when its parent process ends, even if the parent is killed by SIGKILL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)
