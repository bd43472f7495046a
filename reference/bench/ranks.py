"""Run a function on ranks, gather what they found, and get rank 0's answer in this process."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from reference.communication.launch import in_job, launch

Answer = TypeVar("Answer")


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
