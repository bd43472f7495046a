"""A classifier that is evaluated: on ranks, and in scripts, which hold its source."""

import torch
from torch import nn


class Classifier(nn.Module):
    """A linear classifier that notes how it is called."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.offset = nn.Parameter(torch.zeros_like(weight[:, 0]), requires_grad=False)
        self.frozen = nn.Identity().eval()  # stands for a norm that keeps its statistics while the rest trains
        self.dropout = nn.Identity()  # stands for a module that is in the model's own mode
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
