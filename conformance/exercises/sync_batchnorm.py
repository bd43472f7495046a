"""Converts a batch norm, trains it and evaluates it."""

from typing import Any

import torch
from torch import nn

from conformance.exercises.desk import Desk
from conformance.feed import CHANNELS
from pytest_ddp.collectives import watch_collectives

_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}


def normalise(desk: Desk) -> None:
    """Note the state after conversion; outputs and gradients of each step; state, output and collectives at the end."""
    model = desk.call("convert_sync_batchnorm", _model(desk))
    _keep(desk, "converted", model)
    with desk.stage("`model.train()`"):
        model.train()
    for step in range(desk.case.steps):
        x = desk.given[f"x/{step}"].clone().requires_grad_()
        with desk.stage("forward"):
            output = model(x)
        with desk.stage("backward"):
            torch.autograd.backward((output * desk.given[f"gradient/{step}"]).sum())
        desk.answer |= {f"output/{step}": output, f"input/{step}": torch.zeros_like(x) if x.grad is None else x.grad}
    _keep(desk, "end", model)
    desk.answer |= {f"affine/{name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    _evaluate(desk, model)


def _model(desk: Desk) -> nn.Module:
    """Return a model that holds the norm beside a layer that is none of a converter's business."""
    plain = desk.case.plain
    norm = _NORMS[desk.case.dimensions](CHANNELS, affine=not plain, track_running_stats=not plain, dtype=torch.float64)
    norm.load_state_dict({name: desk.given[name] for name in norm.state_dict()})
    return nn.Sequential(nn.Identity(), nn.Sequential(norm))


def _evaluate(desk: Desk, model: Any) -> None:
    seen: list[Any] = []
    with desk.stage("a forward in evaluation mode"), torch.no_grad(), watch_collectives(seen.append):
        model.eval()
        desk.answer["evaluation"] = model(desk.given["x/0"])
    desk.answer["collectives"] = torch.tensor(len(seen))


def _keep(desk: Desk, moment: str, model: Any) -> None:
    with desk.stage("`model.state_dict()`"):
        desk.answer |= {f"{moment}/{name}": value.clone() for name, value in model.state_dict().items()}
