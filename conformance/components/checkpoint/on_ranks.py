"""Saves a training in one world and goes on with it in another."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist

from conformance.components.checkpoint.delayed_write import last_to_write
from conformance.ranks.boundary import stage
from conformance.ranks.context import Desk
from conformance.workload.checkpoint_training import Resumable
from conformance.workload.disk_limit import full_disk
from conformance.workload.numbers import Tensors


class Unwritable:
    """A scaler whose state cannot be written."""

    def state_dict(self) -> dict[str, Any]:
        """Return something that breaks off while it is being written."""
        return {"scale": torch.zeros(1000), "state": self}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take no state."""

    def __reduce__(self) -> NoReturn:
        raise OSError(28, "No space left on device")


def save_and_load(desk: Desk) -> None:
    """In the first world, train and save; in the second, load over other weights and train on."""
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
        dist.barrier()  # as steps of training are: nobody writes while another reads
        desk.call("save_checkpoint", path, training.model, training.optimizer, training.scaler, 0)
        again = Resumable(_weights(desk, "other"), scaled=case.scaled)
        desk.call("load_checkpoint", path, again.model, again.optimizer, again.scaler)
        desk.answer |= {f"reloaded/{name}": value for name, value in again.state().items()}


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  the global generator is what old transforms use


def _drawn() -> Tensors:
    """Return what each global generator gives now, under its name."""
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
