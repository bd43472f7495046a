"""Lets the submission evaluate a classifier, and records in which modes it runs."""

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from conformance.components.evaluation.numbers import OTHER_LABELS
from conformance.ranks.context import Context


class Classifier(nn.Module):
    """A linear classifier that records in which modes its forward ran, and whether its output required gradients."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.offset = nn.Parameter(torch.zeros_like(weight[:, 0]), requires_grad=False)
        self.frozen = nn.Identity().eval()  # as a norm that stays in evaluation mode while the rest trains
        self.dropout = nn.Identity()  # a module in the same mode as the model
        self.modes: set[bool] = set()
        self.dropout_modes: set[bool] = set()
        self.graphs: set[bool] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (samples, features) to (samples, classes)."""
        logits = x @ self.weight.T + self.offset
        self.modes.add(self.training)
        self.dropout_modes.add(self.dropout.training)
        self.graphs.add(logits.requires_grad)
        return logits


def evaluate(context: Context) -> None:
    """Evaluate a model in training mode; if the case says so, evaluate another one on other labels.

    The other one is in evaluation mode, and gradients are disabled.
    """
    _watch(context, "", 0, on=True)
    if context.case.again:
        _watch(context, "again/", OTHER_LABELS, on=False)


def _watch(context: Context, prefix: str, other: int, *, on: bool) -> None:
    """Answer with the accuracy, and with the modes during and after evaluation; `on` is the mode before it."""
    model = Classifier(context.given["weight"].clone())
    model.training = model.dropout.training = on
    model.weight.grad = torch.ones_like(model.weight)
    watching = context.watching_global_generators(1) if on else nullcontext()
    with watching, torch.set_grad_enabled(on):
        context.number(f"{prefix}accuracy", context.call("evaluate", model, _batches(context, other)))
        gradients = torch.is_grad_enabled()
    before, after = Classifier(context.given["weight"]), dict(model.named_parameters())
    flags = {
        "called_in_training": True in model.modes,
        "dropout_in_training": True in model.dropout_modes,
        "graphs_built": True in model.graphs,
        "training": model.training,
        "dropout_training": model.dropout.training,
        "frozen_training": model.frozen.training,
        "gradients": gradients,
        "same_parameters": all(_alike(after.get(name), p) for name, p in before.named_parameters()),
        "same_trainable": all(p.requires_grad == after[n].requires_grad for n, p in before.named_parameters()),
        "same_gradients": _alike(model.weight.grad, torch.ones_like(before.weight)) and model.offset.grad is None,
    }
    context.answer |= {f"{prefix}{name}": torch.tensor(flag) for name, flag in flags.items()}


def _alike(seen: torch.Tensor | None, wanted: torch.Tensor) -> bool:
    return seen is not None and seen.dtype == wanted.dtype and torch.equal(seen, wanted)


def _batches(context: Context, other: int) -> "DataLoader[Any]":
    """Return the batches as a loader, which cannot be indexed; labels are shifted by `other` classes.

    The loader draws from a generator of its own, and moves no global one.
    """
    count, classes = sum(name.startswith("x/") for name in context.given), len(context.given["weight"])
    pairs = [(context.given[f"x/{i}"], (context.given[f"y/{i}"] + other) % classes) for i in range(count)]
    return DataLoader(pairs, batch_size=None, generator=torch.Generator())  # type: ignore[arg-type]  # it has a length and items
