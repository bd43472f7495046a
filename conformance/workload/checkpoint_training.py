"""A small training that can be interrupted: the same on the judge's side and on ranks, as the models are."""

from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from conformance.workload.numbers import Batch, Tensors

DECAY = 0.8
FROZEN = "submodule.bias"
_SCALE, _INTERVAL = 2.0**8, 3


class Resumable:
    """A model with buffers, an optimizer with state and two groups, and if wanted a scaler that grows every third step.

    The name of one layer ends in what wrappers put before all names; its bias does not train. After each step, the
    learning rate is a little lower, as with a scheduler.

    Attributes:
        model, optimizer, scaler: what a checkpoint has to hold.
    """

    def __init__(self, weights: Tensors, *, scaled: bool) -> None:
        layers = {"0": nn.Linear(3, 2), "1": nn.BatchNorm1d(2), "submodule": nn.Linear(2, 1)}
        self.model = nn.Sequential(OrderedDict(layers)).double()
        self.model.load_state_dict(weights, strict=False)
        self.model.get_parameter(FROZEN).requires_grad_(False)
        first, *others = self.model
        slower: dict[str, Any] = {"params": [p for layer in others for p in layer.parameters()], "lr": 0.02}
        self.optimizer = torch.optim.AdamW([{"params": first.parameters()}, slower], lr=0.05, eps=1e-4)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=_SCALE, growth_interval=_INTERVAL) if scaled else None

    def step(self, batch: Batch) -> None:
        """Make one step."""
        x, y = batch
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(x), y)
        if self.scaler is None:
            torch.autograd.backward(loss)
            self.optimizer.step()
        else:
            torch.autograd.backward(self.scaler.scale(loss))
            self.scaler.step(self.optimizer)
            self.scaler.update()
        for group in self.optimizer.param_groups:
            group["lr"] *= DECAY

    def state(self) -> Tensors:
        """Return parameters and buffers, copied."""
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def scale(self) -> torch.Tensor:
        """Return the scaler's scale and the steps since it grew last."""
        state = self.scaler.state_dict() if self.scaler else {"scale": 1.0, "_growth_tracker": 0}
        return torch.tensor([state["scale"], state["_growth_tracker"]], dtype=torch.float64)
