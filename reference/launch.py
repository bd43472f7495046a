"""Starting N ranks of one function on this machine, or taking those that torchrun has started.

Three ways lead to the same place: a function that runs on every rank, inside a process group.

- *spawn*: `torch.multiprocessing.spawn` starts the processes and reports what failed.
- *processes*: plain `multiprocessing` processes, joined here: what spawn does, spelled out.
- in a torchrun (or srun) job the processes are there already, and the function runs in each of them.

In the first two this process keeps the store where the ranks meet, at a port that the system chooses, and tells each
rank its place in the environment as torchrun would. However this process ends, the ranks end with it.
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

import torch.distributed as dist
import torch.multiprocessing as mp
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from reference.process_group import cleanup, setup

Function = Callable[..., object]
_PR_SET_PDEATHSIG = 1
_GRACE_SECONDS = 2.0


@dataclass(frozen=True)
class Job:
    """What a started process must know, beside its rank."""

    world_size: int
    port: int
    parent: int
    function: Function
    arguments: tuple[object, ...]
    backend: str | None


def launch(
    function: Function,
    world_size: int | None,
    *arguments: object,
    start: Literal["spawn", "processes"] = "spawn",
    backend: str | None = None,
) -> None:
    """Run `function(*arguments)` on every rank of a process group, and wait for all of them.

    Args:
        function: what each rank runs, importable by name in a fresh interpreter.
        world_size: number of ranks to start; in a job that has its ranks already, None or their number.
        arguments: given to the function on every rank; pickled unless the ranks are there already.
        start: how to start ranks on this machine.
        backend: as for `process_group.setup`.

    Raises:
        RuntimeError: a rank failed; the message holds its traceback. The others are ended.
        ValueError: there is no world size, or another than the job's.
    """
    if in_job():
        _check_job(world_size)
        _run_inside_group(function, arguments, backend)
        return
    if world_size is None or world_size < 1:
        raise ValueError(f"world size {world_size}: outside a torchrun job, say how many ranks to start (1 or more)")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = Job(world_size, store.port, os.getpid(), function, arguments, backend)
    (_spawn if start == "spawn" else _start_processes)(job)


def in_job() -> bool:
    """Whether this process is a rank already: torchrun, srun or `launch` has told it its place."""
    return "RANK" in os.environ or "SLURM_PROCID" in os.environ


def _check_job(world_size: int | None) -> None:
    job = int(os.environ.get("WORLD_SIZE") or os.environ["SLURM_NTASKS"])
    if world_size not in (None, job):
        raise ValueError(
            f"world size {world_size} is asked for in a job of {job} ranks: leave it out, or start {world_size}"
        )


def _run_inside_group(function: Function, arguments: Sequence[object], backend: str | None) -> None:
    setup(backend)
    function(*arguments)
    cleanup()  # not if it failed: then this process ends, and says why before its peers notice that it is gone


def _run_rank(rank: int, job: Job) -> None:
    """What a started process does: find its place, run, leave."""
    _die_with(job.parent)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(job.world_size),
        "LOCAL_WORLD_SIZE": str(job.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(job.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is the parent's: rank 0 joins it like the others
    }
    _run_inside_group(job.function, job.arguments, job.backend)


# spawn


def _spawn(job: Job) -> None:
    context = mp.spawn(_run_rank, (job,), nprocs=job.world_size, join=False)  # type: ignore[no-untyped-call]  # torch's own
    try:
        while not context.join(grace_period=_GRACE_SECONDS):
            pass
    except (ProcessRaisedException, ProcessExitedException) as error:
        raise RuntimeError(str(error)) from error
    finally:
        _end(context.processes)


# plain processes


def _start_processes(job: Job) -> None:
    fresh = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads' locks, and CUDA refuses it
    processes: list[BaseProcess] = []
    receivers: dict[Connection, int] = {}
    try:
        for rank in range(job.world_size):
            receiver, sender = fresh.Pipe(duplex=False)
            receivers[receiver] = rank
            processes.append(fresh.Process(target=_report, args=(sender, rank, job)))
            processes[-1].start()
            sender.close()  # the rank's copy is the only one now: the pipe ends when the rank does
        failures = _join(receivers)
    finally:
        _end(processes)
    if failures:
        raise RuntimeError("\n\n".join(failures))


def _report(sender: Connection, rank: int, job: Job) -> None:
    """Run a rank and send how it ended: when it failed and its traceback, or None."""
    try:
        _run_rank(rank, job)
    except Exception:  # noqa: BLE001  # whatever the function raises is told
        sender.send((time.monotonic(), f"rank {rank} failed:\n{traceback.format_exc()}"))
        raise SystemExit(1) from None
    sender.send(None)


def _join(receivers: Mapping[Connection, int]) -> list[str]:
    """Wait until all ranks are done or, after a failure, a moment has passed; the failures, first one first."""
    failures: list[tuple[float, str]] = []
    waiting = list(receivers)
    while waiting and (ready := wait(waiting, timeout=_GRACE_SECONDS if failures else None)):
        for receiver in [receiver for receiver in waiting if receiver in ready]:
            waiting.remove(receiver)
            failure = _receive(receiver, receivers[receiver])
            if failure is not None:
                failures.append(failure)
    return [text for _, text in sorted(failures)]


def _receive(receiver: Connection, rank: int) -> tuple[float, str] | None:
    try:
        failure: tuple[float, str] | None = receiver.recv()
    except EOFError:
        return time.monotonic(), f"rank {rank} died without an exception: look at what it printed, and for a signal"
    return failure


# ends


def _end(processes: Sequence[BaseProcess]) -> None:
    """Whatever is left of the ranks goes now: after success they have ended by themselves."""
    for process in processes:
        process.join(timeout=0 if sys.exc_info()[0] else None)
        process.kill()
        process.join()


def _die_with(parent: int) -> None:
    """End this process when `parent`, which started it, is gone, by whatever way it went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it went before we asked
            os._exit(1)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
