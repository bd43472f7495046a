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
from conformance.ranks.context import Desk
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


def save_and_load(desk: Desk) -> None:
    """Train and save in the first world; in the second, load into a model with other weights, and train on."""
    (_save, _load)[desk.task.phase](desk)


def _save(desk: Desk) -> None:
    case, training = desk.case, Resumable(_weights(desk, "start"), scaled=desk.case.scaled)
    path = _path(desk, dist.get_rank())
    path.parent.mkdir(exist_ok=True)
    other = path.with_name("best.pt")
    if not case.apart:
        other.touch()
    parts: tuple[Any, ...] = (training.model, training.optimizer)
    _seed(int(desk.given["own"]))
    if case.again:
        desk.call("save_checkpoint", str(path), *parts, training.scaler, int(desk.given["epoch"]) + 7)
    _steps(desk, training, range(case.before), "a step before saving")
    desk.answer |= {f"saved/{name}": value for name, value in training.state().items()}
    with last_to_write(_path(desk, 0)) as seen:
        desk.call("save_checkpoint", str(path), *parts, training.scaler, int(desk.given["epoch"]))
    desk.answer |= {"there": torch.tensor(seen.there), "beside": torch.tensor(case.apart or other.exists())}
    desk.answer["written"] = torch.tensor(path.exists())
    if case.failing:
        unwritable = _raises(lambda: desk.call("save_checkpoint", str(path), *parts, Unwritable(), 0))
        with full_disk():
            full = _raises(lambda: desk.call("save_checkpoint", str(path), *parts, training.scaler, 0))
        desk.answer |= {"unwritable_raised": torch.tensor(unwritable), "full_disk_raised": torch.tensor(full)}
    if case.goes_on or case.later:
        _steps(desk, training, range(case.before, case.before + case.after), "a step after saving")
        desk.answer |= {f"went_on/{name}": value for name, value in training.state().items()}
    if case.later:
        later = str(path.with_suffix(".later"))
        desk.call("save_checkpoint", later, *parts, training.scaler, int(desk.given["epoch"]) + 1)


def _raises(save: Callable[[], Any]) -> bool:
    try:
        save()
    except Exception:  # noqa: BLE001  whatever the submission raises
        return True
    return False


def _load(desk: Desk) -> None:
    case = desk.case
    training = Resumable(_weights(desk, "other"), scaled=case.scaled and not case.unscaled)
    path = str(_path(desk, 0))
    _seed(1000 + int(desk.given["own"]))
    desk.number("epoch", desk.call("load_checkpoint", path, training.model, training.optimizer, training.scaler))
    desk.answer |= {f"loaded/{name}": value for name, value in training.state().items()} | {"scale": training.scale()}
    desk.answer |= _drawn()
    _steps(desk, training, range(case.before, case.before + case.after), "a step after loading")
    desk.answer |= {f"end/{name}": value for name, value in training.state().items()}
    if case.reloaded:
        dist.barrier()  # no rank writes while another one reads, as in a training
        desk.call("save_checkpoint", path, training.model, training.optimizer, training.scaler, 0)
        again = Resumable(_weights(desk, "other"), scaled=case.scaled)
        desk.call("load_checkpoint", path, again.model, again.optimizer, again.scaler)
        desk.answer |= {f"reloaded/{name}": value for name, value in again.state().items()}


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


def _steps(desk: Desk, training: Resumable, steps: range, name: str) -> None:
    for step in steps:
        with stage(name):
            training.step((desk.given[f"x/{step}"], desk.given[f"y/{step}"]))


def _weights(desk: Desk, whose: str) -> Tensors:
    prefix = f"{whose}/"
    return {name.removeprefix(prefix): value for name, value in desk.given.items() if name.startswith(prefix)}


def _path(desk: Desk, rank: int) -> Path:
    folder = Path(desk.task.folder)
    return (folder / f"rank{rank}" if desk.case.apart else folder / "shared") / "checkpoint.pt"


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
