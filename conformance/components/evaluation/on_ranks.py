"""Lets the submission evaluate a classifier, and notes the faults: wrong modes, and what is changed afterwards."""

from collections import defaultdict
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from conformance.components.evaluation.case import OTHER_LABELS
from conformance.ranks.context import Context


class Classifier(nn.Module):
    """A linear classifier that notes the faults of its calls: wrong modes, and outputs that require gradients."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.offset = nn.Parameter(torch.zeros_like(weight[:, 0]), requires_grad=False)
        self.frozen = nn.Identity().eval()  # as a norm that stays in evaluation mode while the rest trains
        self.dropout = nn.Identity()  # a module in the same mode as the model
        self.faults = defaultdict[str, bool](bool)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (samples, features) to (samples, classes)."""
        logits = x @ self.weight.T + self.offset
        self.faults["called_in_training"] |= self.training
        self.faults["dropout_in_training"] |= self.dropout.training
        self.faults["graphs_built"] |= logits.requires_grad
        return logits


def evaluate(context: Context) -> None:
    """Evaluate a model in training mode; if the case says so, evaluate another one on other labels.

    The other one is in evaluation mode, and gradients are disabled.
    """
    _watch(context, "", 0, on=True)
    if context.case.again:
        _watch(context, "again/", OTHER_LABELS, on=False)


def _watch(context: Context, prefix: str, other: int, *, on: bool) -> None:
    """Answer with the accuracy, and with each fault there is; `on` is the mode before evaluation."""
    model, before = Classifier(context.given["weight"].clone()), Classifier(context.given["weight"])
    model.training = model.dropout.training = on
    model.weight.grad = torch.ones_like(model.weight)
    watching = context.watching_global_generators(1) if on else nullcontext()
    with watching, torch.set_grad_enabled(on):
        context.number(f"{prefix}accuracy", context.call("evaluate", model, _batches(context, other)))
        turned = torch.is_grad_enabled() != on
    parameters = dict(model.named_parameters())
    kept = [(parameters.get(name), then) for name, then in before.named_parameters()]
    faults = {
        **model.faults,
        "mode": model.training != on,
        "mode_of_dropout": model.dropout.training != on,
        "mode_of_frozen": model.frozen.training,
        "turned": turned,
        "parameters": not all(_alike(now, then) for now, then in kept),
        "trainable": any(now is not None and now.requires_grad != then.requires_grad for now, then in kept),
        "gradients": not _alike(model.weight.grad, torch.ones_like(before.weight)) or model.offset.grad is not None,
    }
    context.answer |= {f"{prefix}{name}": torch.tensor(fault) for name, fault in faults.items() if fault}


def _alike(seen: torch.Tensor | None, wanted: torch.Tensor) -> bool:
    return seen is not None and seen.dtype == wanted.dtype and torch.equal(seen, wanted)


def _batches(context: Context, other: int) -> "DataLoader[Any]":
    """Return the batches as a loader, which cannot be indexed; labels are shifted by `other` classes.

    The loader draws from a generator of its own, and moves no global one.
    """
    count, classes = sum(name.startswith("x/") for name in context.given), len(context.given["weight"])
    pairs = [(context.given[f"x/{i}"], (context.given[f"y/{i}"] + other) % classes) for i in range(count)]
    return DataLoader(pairs, batch_size=None, generator=torch.Generator())  # type: ignore[arg-type]  # it has a length and items
