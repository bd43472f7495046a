"""A small training that can be interrupted: the same in the judge's process and on ranks."""

from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from conformance.workload.numbers import Batch, Tensors

DECAY = 0.8
FROZEN = "submodule.bias"
_SCALE, _INTERVAL = 2.0**8, 3


class Resumable:
    """A model with buffers, an optimizer with state and two groups, and optionally a gradient scaler.

    One layer has a name that ends in "module", like the prefix of wrappers; its bias is frozen. The learning rate falls
    after each step, as with a scheduler. The scaler's scale grows every third step.

    Attributes:
        model, optimizer, scaler: the objects whose state a checkpoint must hold; `scaler` may be None.
    """

    def __init__(self, weights: Tensors, *, scaled: bool) -> None:
        layers = {"0": nn.Linear(3, 2), "1": nn.BatchNorm1d(2), "submodule": nn.Linear(2, 1)}
        self.model = nn.Sequential(OrderedDict(layers)).double()
        self.model.load_state_dict(weights, strict=False)
        self.model.get_parameter(FROZEN).requires_grad_(False)
        first, *others = self.model
        slower: dict[str, Any] = {"params": [p for layer in others for p in layer.parameters()], "lr": 0.02}
        self.optimizer = torch.optim.AdamW([{"params": first.parameters()}, slower], lr=0.05, eps=1e-4)
        self._scaler = torch.amp.GradScaler("cpu", init_scale=_SCALE, growth_interval=_INTERVAL, enabled=scaled)
        self.scaler = self._scaler if scaled else None

    def step(self, batch: Batch) -> None:
        """Make one optimizer step."""
        x, y = batch
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(x), y)
        torch.autograd.backward(self._scaler.scale(loss))
        self._scaler.step(self.optimizer)
        self._scaler.update()
        for group in self.optimizer.param_groups:
            group["lr"] *= DECAY

    def state(self) -> Tensors:
        """Return copies of parameters and buffers, by name."""
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def scale(self) -> torch.Tensor:
        """Return the scaler's scale and the number of steps since it last grew, of shape (2,) in float64."""
        state = {"scale": 1.0, "_growth_tracker": 0} | self._scaler.state_dict()
        return torch.tensor([state["scale"], state["_growth_tracker"]], dtype=torch.float64)
