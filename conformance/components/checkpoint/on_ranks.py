"""Saves a training in one world of ranks, and loads it and trains on in another."""

import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import DistStoreError

from conformance.components.checkpoint.resumable import Resumable
from conformance.ranks.boundary import stage
from conformance.ranks.context import Context
from conformance.ranks.environment import seed_global_generators
from conformance.workload.numbers import Tensors, under
from pytest_ddp.rank.collective_hooks import watch_collectives

_PATIENCE = timedelta(seconds=5)  # with ranks that neither leave nor communicate, but watch the file system


@contextmanager
def full_disk() -> Iterator[None]:
    """Let every write after the first 512 bytes of a file raise OSError; Python ignores the signal SIGXFSZ."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, limits[1]))  # bytes: less than any state
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class Unwritable:
    """A scaler whose state cannot be written."""

    def state_dict(self) -> dict[str, Any]:
        """Return a state whose writing raises OSError half-way."""
        return {"scale": torch.zeros(1000), "state": self}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load nothing."""

    def __reduce__(self) -> NoReturn:
        raise OSError(28, "No space left on device")


def save_and_load(context: Context) -> None:
    """Train and save in the first world; in the second, load into a model with other weights, and train on."""
    (_save, _load)[context.task.phase](context)


def _save(context: Context) -> None:
    case, training = context.case, Resumable(under(context.given, "start/"), scaled=context.case.scaled)
    path, epoch = _path(context, dist.get_rank()), int(context.given["epoch"])
    path.parent.mkdir(exist_ok=True)
    other = path.with_name("best.pt")
    if not case.apart:
        other.touch()
    before = set(path.parent.iterdir()) - {path}

    def save(to: Path, epoch: int, scaler: Any = training.scaler) -> None:
        context.call("save_checkpoint", str(to), training.model, training.optimizer, scaler, epoch)

    seed_global_generators(int(context.given["own"]))
    if case.again:
        save(path, epoch + 7)
    _steps(context, training, range(case.before), "a step before saving")
    context.keep("saved", training.state())
    there = _rank_0_writes_last(_path(context, 0), lambda: save(path, epoch))
    facts = {"there": there, "beside": case.apart or other.exists(), "written": path.exists()}
    facts["wrote_beside"] = bool(set(path.parent.iterdir()) - {path, *before})
    if case.failing:
        facts["unwritable_raised"] = _raises(lambda: save(path, 0, Unwritable()))
        with full_disk():
            facts["full_disk_raised"] = _raises(lambda: save(path, 0))
    context.answer |= {name: torch.tensor(holds) for name, holds in facts.items()}
    if case.goes_on or case.later:
        _steps(context, training, range(case.before, case.before + case.after), "a step after saving")
        context.keep("went_on", training.state())
    if case.later:
        save(path.with_suffix(".later"), epoch + 1)


def _raises(save: Callable[[], Any]) -> bool:
    try:
        save()
    except Exception:  # noqa: BLE001  whatever the submission raises
        return True
    return False


def _load(context: Context) -> None:
    case = context.case
    if case.apart:
        return
    training = Resumable(under(context.given, "other/"), scaled=case.scaled and not case.unscaled)
    path = str(_path(context, 0))
    seed_global_generators(1000 + int(context.given["own"]))
    context.number("epoch", context.call("load_checkpoint", path, training.model, training.optimizer, training.scaler))
    context.keep("loaded", training.state())
    context.answer["scale"] = training.scale()
    context.keep("drawn", _drawn())
    _steps(context, training, range(case.before, case.before + case.after), "a step after loading")
    context.keep("end", training.state())
    if case.reloaded:
        dist.barrier()  # no rank writes while another one reads, as in a training
        context.call("save_checkpoint", path, training.model, training.optimizer, training.scaler, 0)
        dist.barrier()  # another check asks whether the file is there before
        again = Resumable(under(context.given, "other/"), scaled=case.scaled)
        context.call("load_checkpoint", path, again.model, again.optimizer, again.scaler)
        context.keep("reloaded", again.state())


def _drawn() -> Tensors:
    """Return the next numbers of each global generator, under its name."""
    return {
        "torch": torch.rand(4),
        "random": torch.tensor([random.random() for _ in range(4)]),  # noqa: S311  no secret
        "numpy": torch.tensor(np.random.rand(4)),  # noqa: NPY002  likewise
    }


def _steps(context: Context, training: Resumable, steps: range, name: str) -> None:
    for step in steps:
        with stage(name):
            training.step((context.given[f"x/{step}"], context.given[f"y/{step}"]))


def _path(context: Context, rank: int) -> Path:
    folder = Path(context.task.folder)
    return (folder / f"rank{rank}" if context.case.apart else folder / "shared") / "checkpoint.pt"


def _rank_0_writes_last(path: Path, save: Callable[[], None]) -> bool:
    """Save, and return whether the file exists when this rank returns from saving.

    Rank 0's `torch.save` waits until every other rank has returned or entered a collective. So the file is there for
    a rank that returns only if the submission waits for rank 0.
    """
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()  # noqa: SLF001  torch's only way
    torch_save = torch.save
    others = [f"{path}: {other} is waiting or has left" for other in range(1, dist.get_world_size())]

    def save_after_others(*args: Any, **options: Any) -> None:
        with suppress(DistStoreError):
            store.wait(others, _PATIENCE)
        torch_save(*args, **options)

    if rank == 0:
        with mock.patch("torch.save", save_after_others):
            save()
        return path.exists()
    with watch_collectives(lambda _: store.set(others[rank - 1], "")):
        save()
    there = path.exists()
    store.set(others[rank - 1], "")
    return there
