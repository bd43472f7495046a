"""Has a classifier evaluated, and watches how."""

import torch

from conformance.classifier import Classifier
from conformance.exercises.desk import Desk


def evaluate(desk: Desk) -> None:
    """Evaluate a model that is in training mode; note the accuracy, and the modes before, during and after."""
    model = Classifier(desk.given["weight"].clone())
    count = sum(name.startswith("x/") for name in desk.given)
    desk.number(
        "accuracy", desk.call("evaluate", model, [(desk.given[f"x/{i}"], desk.given[f"y/{i}"]) for i in range(count)])
    )
    flags = {"called_in_training": True in model.modes, "graphs_built": True in model.graphs, "left": model.training}
    desk.answer |= {name: torch.tensor(flag) for name, flag in flags.items()}
