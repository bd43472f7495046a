"""Run a function on ranks, gather what they found, and get rank 0's answer in this process."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from reference.communication.launch import in_job, launch

Answer = TypeVar("Answer")

_RANKS = 2  # that a command starts by default


def uses_nccl(backend: str | None, device: str | None) -> bool:
    """Whether ranks with these options, as for `process_group.setup`, communicate by nccl."""
    return backend == "nccl" or (backend is None and device != "cpu" and torch.cuda.is_available())


def gpus() -> int:
    """The ranks that nccl can have on this machine: one for each GPU; at least one, which then says what is missing."""
    return torch.cuda.device_count() or 1


def ranks_to_start(world_size: int | None, backend: str | None, device: str | None) -> int | None:
    """How many ranks `on_ranks` must start; None in a torchrun job, whose ranks are there.

    Args:
        world_size: as the user asked. None: two ranks, with nccl no more than there are GPUs.
        backend: as for `process_group.setup`.
        device: as for `process_group.setup`.
    """
    if in_job():
        return None
    return world_size or (min(_RANKS, gpus()) if uses_nccl(backend, device) else _RANKS)


def on_ranks(
    function: Callable[..., Any],
    world_size: int | None,
    *arguments: object,
    backend: str | None = None,
    device: str | None = None,
) -> Any:
    """Run `function(*arguments)` on every rank, and return what it returned on rank 0.

    Args:
        function: importable by name; what it returns on rank 0 must fit into JSON.
        world_size: number of ranks to start. In a torchrun job: None, or the job's number of ranks.
        arguments: passed to the function on every rank.
        backend: as for `process_group.setup`.
        device: as for `process_group.setup`.

    Raises:
        RuntimeError: a rank failed; the message has its traceback.
        ValueError: `world_size` is missing, or differs from the job's.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler's library reports each start and stop
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        launch(_answer, world_size, function, arguments, answer, in_job(), backend=backend, device=device)
        return json.loads(answer.read_text(encoding="utf-8"))


def gather(mine: Answer) -> list[Answer]:
    """Every rank's object, in rank order, on every rank."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every


def _answer(function: Callable[..., Any], arguments: tuple[object, ...], path: Path, every_rank: bool) -> None:  # noqa: FBT001  # `launch` passes arguments by position
    """Write rank 0's answer. In a torchrun job every rank called `on_ranks`, and each has a path of its own."""
    answer = [json.dumps(function(*arguments))]
    if every_rank:
        dist.broadcast_object_list(answer, src=0)
    if every_rank or dist.get_rank() == 0:
        path.write_text(answer[0], encoding="utf-8")
