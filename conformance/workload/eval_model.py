"""A classifier to evaluate, on ranks and in scripts, which hold its source."""

import torch
from torch import nn


class Classifier(nn.Module):
    """A linear classifier that records in which modes its forward ran, and whether its output required gradients."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.offset = nn.Parameter(torch.zeros_like(weight[:, 0]), requires_grad=False)
        self.frozen = nn.Identity().eval()  # like a norm that is in evaluation mode while the rest trains
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
