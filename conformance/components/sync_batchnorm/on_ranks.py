"""Lets the submission convert a batch norm, trains the result and evaluates it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from conformance.components.sync_batchnorm.case import CHANNELS
from conformance.ranks.boundary import stage
from conformance.ranks.context import Context
from pytest_ddp.rank.collective_hooks import watch_collectives

_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
_OTHERS: dict[str, Callable[[], nn.Module]] = {  # made anew each time: a converter may change a module's class in place
    "instance": partial(nn.InstanceNorm2d, CHANNELS),
    "group": partial(nn.GroupNorm, 1, CHANNELS, affine=False),
    "layer": partial(nn.LayerNorm, CHANNELS, elementwise_affine=False),
}
_AGAIN = "again"


def normalise(context: Context) -> None:
    """Answer with the state after conversion and at the end, outputs and gradients of each step, and an evaluation."""
    model = context.call("convert_sync_batchnorm", _model(context))
    _keep(context, "converted", model)
    kinds = {name: type(part) for name, part in model.named_modules()}
    same = all(kinds.get(f"0.{name}") is type(make()) for name, make in _OTHERS.items())
    context.answer["other_norms_kept"] = torch.tensor(same or context.case.bare)
    places = dict(model.named_modules(remove_duplicate=False))
    context.answer["still_shared"] = torch.tensor(places.get("1.0") is places.get(f"0.{_AGAIN}"))
    if not context.case.evaluating:
        with stage("`model.train()`"):
            model.train()
    backwards = (_forward(context, model, step) for step in range(context.case.steps))
    for backward in list(backwards) if context.case.at_once else backwards:
        if not context.case.without_gradients:
            backward()
    _keep(context, "end", model)
    for name, p in model.named_parameters():
        context.answer |= {f"requires_grad/{name}": torch.tensor(p.requires_grad)}
        context.answer |= {} if p.grad is None else {f"affine/{name}": p.grad}
    context.answer |= {f"graph/{name}": torch.tensor(b.requires_grad) for name, b in model.named_buffers()}
    _evaluate(context, model)


def _model(context: Context) -> nn.Module:
    """Return the norm alone, or a model that holds it beside other norms, which a converter must leave as they are.

    The other norms are never called.
    """
    case = context.case
    options = (case.eps, case.momentum, case.affine, case.tracked)
    dtype = torch.float32 if case.far else torch.float64
    norm = _NORMS[case.dimensions](CHANNELS, *options, dtype=dtype)
    norm.load_state_dict({name: context.given[name] for name in norm.state_dict()})
    norm.requires_grad_(not case.frozen)
    others = nn.Identity()
    for name, make in _OTHERS.items():
        others.add_module(name, make())
    if case.shared:
        others.add_module(_AGAIN, norm)
    model = norm if case.bare else nn.Sequential(others, nn.Sequential(norm))
    return model.train(not case.evaluating)


def _forward(context: Context, model: Any, step: int) -> Callable[[], None]:
    """Answer with the output of a step, and return its backward pass, which may follow later.

    As in a residual block, something is added to the output. Autograd reaches it after the model's backward, since it
    was made before the output.
    """
    start = context.given[f"x/{step}"].clone().requires_grad_(not context.case.first)
    beside = torch.zeros_like(start, requires_grad=True).clone()
    beside.retain_grad()
    x = _laid_out(context, start.clone())  # not a leaf: torch lets nobody change a leaf in place
    with stage("forward"), torch.set_grad_enabled(not context.case.without_gradients):
        output = model(x)
    context.answer |= {f"output/{step}": output, f"x/{step}": x}

    def backward() -> None:
        gradient = _laid_out(context, context.given[f"gradient/{step}"].clone())
        with stage("backward"):
            torch.autograd.backward(output + beside, gradient)
        context.answer |= {f"input/{step}": _gradient_of(start), f"gradient/{step}": _gradient_of(beside)}

    return backward


def _laid_out(context: Context, x: torch.Tensor) -> torch.Tensor:
    """Return the tensor in the memory layout of the case."""
    turned = tuple(reversed(range(x.dim())))
    return x.permute(turned).contiguous().permute(turned) if context.case.transposed else x


def _gradient_of(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def _evaluate(context: Context, model: Any) -> None:
    seen: list[Any] = []
    x = context.given["x/0"].clone()
    with stage("a forward in evaluation mode"), torch.no_grad(), watch_collectives(seen.append):
        model.eval()
        found = model(x)
    context.answer |= {"evaluation": found} if isinstance(found, torch.Tensor) else {}
    context.answer |= {"collectives": torch.tensor(len(seen)), "x/evaluation": x}


def _keep(context: Context, moment: str, model: Any) -> None:
    with stage("`model.state_dict()`"):
        context.keep(moment, {name: value.clone() for name, value in model.state_dict().items()})
