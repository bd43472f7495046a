"""Has a classifier evaluated, and watches how."""

from typing import Any

import torch
from torch.utils.data import DataLoader

from conformance.classifier import Classifier
from conformance.exercises.desk import Desk


def evaluate(desk: Desk) -> None:
    """Evaluate a model that is in training mode, and one that is not, with gradients turned off, if the case has it."""
    _watch(desk, "", on=True)
    if desk.case.again:
        _watch(desk, "again/", on=False)


def _watch(desk: Desk, prefix: str, *, on: bool) -> None:
    """Note the accuracy, and the modes during evaluation and after it; before, all but one module's are as given."""
    model = Classifier(desk.given["weight"].clone())
    model.training = model.dropout.training = on
    with torch.set_grad_enabled(on):
        desk.number(f"{prefix}accuracy", desk.call("evaluate", model, _batches(desk)))
        gradients = torch.is_grad_enabled()
    flags = {
        "called_in_training": True in model.modes,
        "dropout_in_training": True in model.dropout_modes,
        "graphs_built": True in model.graphs,
        "training": model.training,
        "dropout_training": model.dropout.training,
        "frozen_training": model.frozen.training,
        "gradients": gradients,
    }
    desk.answer |= {f"{prefix}{name}": torch.tensor(flag) for name, flag in flags.items()}


def _batches(desk: Desk) -> "DataLoader[Any]":
    """Return what can be iterated over and counted, but not indexed, as in training."""
    count = sum(name.startswith("x/") for name in desk.given)
    pairs = [(desk.given[f"x/{i}"], desk.given[f"y/{i}"]) for i in range(count)]
    return DataLoader(pairs, batch_size=None)  # type: ignore[arg-type]  # it has a length and items
