"""Saves a training in one world and goes on with it in another."""

from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from conformance.data import Tensors
from conformance.exercises.desk import Desk
from conformance.resumable import Resumable


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
    (_save, _load)[desk.assignment.phase](desk)


def _save(desk: Desk) -> None:
    case, training = desk.case, Resumable(_weights(desk, "start"), scaled=desk.case.scaled)
    for step in range(case.before):
        training.step((desk.given[f"x/{step}"], desk.given[f"y/{step}"]))
    desk.answer |= {f"saved/{name}": value for name, value in training.state().items()}
    path = _path(desk, dist.get_rank())
    path.parent.mkdir(exist_ok=True)
    parts: tuple[Any, ...] = (training.model, training.optimizer)
    desk.call("save_checkpoint", str(path), *parts, training.scaler, int(desk.given["epoch"]))
    desk.answer["files"] = torch.tensor(len(list(path.parent.iterdir())))
    if case.failing:
        with suppress(Exception):
            desk.call("save_checkpoint", str(path), *parts, Unwritable(), 0)


def _load(desk: Desk) -> None:
    case, training = desk.case, Resumable(_weights(desk, "other"), scaled=desk.case.scaled)
    path = str(_path(desk, 0))
    desk.number("epoch", desk.call("load_checkpoint", path, training.model, training.optimizer, training.scaler))
    desk.answer |= {f"loaded/{name}": value for name, value in training.state().items()} | {"scale": training.scale()}
    for step in range(case.before, case.before + case.after):
        with desk.stage("the first step after loading"):
            training.step((desk.given[f"x/{step}"], desk.given[f"y/{step}"]))
    desk.answer |= {f"end/{name}": value for name, value in training.state().items()}


def _weights(desk: Desk, whose: str) -> Tensors:
    prefix = f"{whose}/"
    return {name.removeprefix(prefix): value for name, value in desk.given.items() if name.startswith(prefix)}


def _path(desk: Desk, rank: int) -> Path:
    folder = Path(desk.assignment.folder)
    return (folder / f"rank{rank}" if desk.case.apart else folder / "shared") / "checkpoint.pt"
