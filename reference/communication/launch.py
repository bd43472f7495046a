"""Starting N ranks of one function on this machine, or taking those that torchrun has started.

Three ways lead to the same place: a function that runs on every rank, inside a process group.

- *spawn*: `torch.multiprocessing.spawn` starts the processes and reports what failed.
- *processes*: plain `multiprocessing` processes, joined here: what spawn does, spelled out.
- in a torchrun (or srun) job the processes are there already, and the function runs in each of them.

In the first two this process keeps the store where the ranks meet, at a port that the system chooses, and tells each
rank its place in the environment as torchrun would. However this process ends, the ranks end with it.
"""

import multiprocessing
import os
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

from reference.communication.mortality import die_with
from reference.communication.process_group import cleanup, setup

Function = Callable[..., object]
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
        function: what each rank runs, importable by name in a fresh interpreter.
        world_size: number of ranks to start; in a job that has its ranks already, None or their number.
        arguments: given to the function on every rank; pickled unless the ranks are there already.
        start: how to start ranks on this machine.
        backend: as for `process_group.setup`.
        device: as for `process_group.setup`.

    Raises:
        RuntimeError: a rank failed; the message holds its traceback. The others are ended.
        ValueError: there is no world size, or another than the job's.
    """
    if in_job():
        _check_job(world_size)
        _run_inside_group(function, arguments, backend, device)
        return
    if world_size is None or world_size < 1:
        raise ValueError(f"world size {world_size}: outside a torchrun job, say how many ranks to start (1 or more)")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    job = Job(world_size, store.port, os.getpid(), function, arguments, backend, device)
    (_spawn if start == "spawn" else _start_processes)(job)


def in_job() -> bool:
    """Whether this process is a rank already: torchrun, srun or `launch` has told it its place."""
    return "RANK" in os.environ or "SLURM_STEP_NODELIST" in os.environ  # a batch script has SLURM_PROCID, but no step


def _check_job(world_size: int | None) -> None:
    job = int(os.environ.get("WORLD_SIZE") or os.environ["SLURM_NTASKS"])
    if world_size not in (None, job):
        raise ValueError(
            f"world size {world_size} is asked for in a job of {job} ranks: leave it out, or start {world_size}"
        )


def _run_inside_group(function: Function, arguments: Sequence[object], backend: str | None, device: str | None) -> None:
    setup(backend, device)
    function(*arguments)
    cleanup()  # not if it failed: then this process ends, and says why before its peers notice that it is gone


def _run_rank(rank: int, job: Job) -> None:
    """What a started process does: find its place, run, leave."""
    die_with(job.parent)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(job.world_size),
        "LOCAL_WORLD_SIZE": str(job.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(job.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is the parent's: rank 0 joins it like the others
    }
    if job.world_size > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # as under torchrun: else every rank would use every core
    _run_inside_group(job.function, job.arguments, job.backend, job.device)


def _spawn(job: Job) -> None:
    context = mp.spawn(_run_rank, (job,), nprocs=job.world_size, join=False)  # type: ignore[no-untyped-call]  # torch's own
    try:
        while not context.join(grace_period=_GRACE_SECONDS):
            pass
    except (ProcessRaisedException, ProcessExitedException) as error:
        raise RuntimeError(str(error).strip()) from error
    finally:
        _end(context.processes)


def _start_processes(job: Job) -> None:
    fresh = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads' locks, and CUDA refuses it
    ranks: dict[Connection, BaseProcess] = {}
    try:
        for rank in range(job.world_size):
            receiver, sender = fresh.Pipe(duplex=False)
            ranks[receiver] = fresh.Process(target=_report, args=(sender, rank, job), name=f"rank {rank}")
            ranks[receiver].start()
            sender.close()  # the rank's copy is the only one now: the pipe ends when the rank does
        if failures := _join(ranks):
            raise RuntimeError("\n\n".join(failures))
        for process in ranks.values():
            process.join()
    finally:
        _end(list(ranks.values()))


def _report(sender: Connection, rank: int, job: Job) -> None:
    """Run a rank and send how it ended: when it failed and its traceback, or None."""
    try:
        _run_rank(rank, job)
    except Exception:  # noqa: BLE001  # whatever the function raises is told
        sender.send((time.monotonic(), f"rank {rank} failed:\n{traceback.format_exc()}"))
        raise SystemExit(1) from None
    sender.send(None)


def _join(ranks: Mapping[Connection, BaseProcess]) -> list[str]:
    """Wait until all ranks are done or, after a failure, a moment has passed; the failures, first one first."""
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
    """What a rank sent; if it could not send, when that was seen, and how it ended."""
    try:
        failure: tuple[float, str] | None = receiver.recv()
    except EOFError:
        seen = time.monotonic()
        process.join()
        return seen, f"{process.name} ended before it was done, with exit code {process.exitcode} (below 0: a signal)"
    return failure


def _end(processes: Sequence[BaseProcess]) -> None:
    """Whatever is left of the ranks goes now: the others have failed, or this process was interrupted."""
    for process in processes:
        if process.pid is not None:  # else it could not be started
            process.kill()
            process.join()
