"""Saves a training in one world of ranks, and loads it and trains on in another."""

import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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
from conformance.workload.numbers import Tensors
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
    case, training = context.case, Resumable(_weights(context, "start"), scaled=context.case.scaled)
    path = _path(context, dist.get_rank())
    path.parent.mkdir(exist_ok=True)
    other = path.with_name("best.pt")
    if not case.apart:
        other.touch()
    parts: tuple[Any, ...] = (training.model, training.optimizer)
    _seed(int(context.given["own"]))
    if case.again:
        context.call("save_checkpoint", str(path), *parts, training.scaler, int(context.given["epoch"]) + 7)
    _steps(context, training, range(case.before), "a step before saving")
    context.answer |= {f"saved/{name}": value for name, value in training.state().items()}
    with last_to_write(_path(context, 0)) as seen:
        context.call("save_checkpoint", str(path), *parts, training.scaler, int(context.given["epoch"]))
    context.answer |= {"there": torch.tensor(seen.there), "beside": torch.tensor(case.apart or other.exists())}
    context.answer["written"] = torch.tensor(path.exists())
    if case.failing:
        unwritable = _raises(lambda: context.call("save_checkpoint", str(path), *parts, Unwritable(), 0))
        with full_disk():
            full = _raises(lambda: context.call("save_checkpoint", str(path), *parts, training.scaler, 0))
        context.answer |= {"unwritable_raised": torch.tensor(unwritable), "full_disk_raised": torch.tensor(full)}
    if case.goes_on or case.later:
        _steps(context, training, range(case.before, case.before + case.after), "a step after saving")
        context.answer |= {f"went_on/{name}": value for name, value in training.state().items()}
    if case.later:
        later = str(path.with_suffix(".later"))
        context.call("save_checkpoint", later, *parts, training.scaler, int(context.given["epoch"]) + 1)


def _raises(save: Callable[[], Any]) -> bool:
    try:
        save()
    except Exception:  # noqa: BLE001  whatever the submission raises
        return True
    return False


def _load(context: Context) -> None:
    case = context.case
    training = Resumable(_weights(context, "other"), scaled=case.scaled and not case.unscaled)
    path = str(_path(context, 0))
    _seed(1000 + int(context.given["own"]))
    context.number("epoch", context.call("load_checkpoint", path, training.model, training.optimizer, training.scaler))
    context.answer |= {f"loaded/{name}": value for name, value in training.state().items()} | {
        "scale": training.scale()
    }
    context.answer |= _drawn()
    _steps(context, training, range(case.before, case.before + case.after), "a step after loading")
    context.answer |= {f"end/{name}": value for name, value in training.state().items()}
    if case.reloaded:
        dist.barrier()  # no rank writes while another one reads, as in a training
        context.call("save_checkpoint", path, training.model, training.optimizer, training.scaler, 0)
        again = Resumable(_weights(context, "other"), scaled=case.scaled)
        context.call("load_checkpoint", path, again.model, again.optimizer, again.scaler)
        context.answer |= {f"reloaded/{name}": value for name, value in again.state().items()}


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  the global generator is what old transforms use


def _drawn() -> Tensors:
    """Return the next numbers of each global generator, under its name."""
    numbers = {
        "torch": torch.rand(4).tolist(),
        "random": [random.random() for _ in range(4)],  # noqa: S311  no secret
        "numpy": np.random.rand(4).tolist(),  # noqa: NPY002  likewise
    }
    return {f"drawn/{name}": torch.tensor(drawn, dtype=torch.float64) for name, drawn in numbers.items()}


def _steps(context: Context, training: Resumable, steps: range, name: str) -> None:
    for step in steps:
        with stage(name):
            training.step((context.given[f"x/{step}"], context.given[f"y/{step}"]))


def _weights(context: Context, whose: str) -> Tensors:
    prefix = f"{whose}/"
    return {name.removeprefix(prefix): value for name, value in context.given.items() if name.startswith(prefix)}


def _path(context: Context, rank: int) -> Path:
    folder = Path(context.task.folder)
    return (folder / f"rank{rank}" if context.case.apart else folder / "shared") / "checkpoint.pt"


@dataclass
class Seen:
    """Whether the file existed when this rank left the block."""

    there: bool = False


@contextmanager
def last_to_write(path: Path) -> Iterator[Seen]:
    """Delay rank 0's `torch.save` in the block until every other rank has left the block or entered a collective.

    So the file is there for a rank that leaves only if the submission waits for rank 0.
    """
    store, rank, seen = dist.distributed_c10d._get_default_store(), dist.get_rank(), Seen()  # noqa: SLF001  torch's only way
    others = [f"{path}: {other} is waiting or has left" for other in range(1, dist.get_world_size())]
    if rank == 0:
        with mock.patch("torch.save", _after(store, others)):
            yield seen
    else:
        with watch_collectives(lambda _: store.set(others[rank - 1], "")):
            yield seen
    seen.there = path.exists()
    if rank != 0:
        store.set(others[rank - 1], "")


def _after(store: dist.Store, keys: list[str]) -> Any:
    """Return a `torch.save` that first waits for these keys of the store."""
    save = torch.save

    def waiting(*args: Any, **options: Any) -> None:
        with suppress(DistStoreError):
            store.wait(keys, _PATIENCE)
        save(*args, **options)

    return waiting
