"""Modules for the layers that torch does not have in this form: from (samples, width) to (samples, width)."""

import torch
from torch import nn


class SpreadConv2d(nn.Conv2d):
    """A 2-by-2 convolution of each value, repeated on a 2-by-2 grid so that every element of the kernel matters."""

    def __init__(self, inputs: int, outputs: int, *, channels_last: bool) -> None:
        super().__init__(inputs, outputs, 2)
        if channels_last:
            self.to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (samples, inputs) to (samples, outputs)."""
        grid = torch.tensor([[0.5, 1.0], [1.5, 2.0]], dtype=x.dtype)
        return super().forward(x[:, :, None, None] * grid).flatten(1)


class AddedEmbedding(nn.Embedding):
    """Adds to each sample a row of a table, which the sample's first value selects."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (samples, width) to (samples, width).

        A sparse gradient shares memory with the gradient of the row: the multiple gives the row a gradient of its own.
        """
        row = (8 * x[:, 0]).floor().long() % self.num_embeddings
        return x + 1.5 * super().forward(row)


class SmoothNorm(nn.RMSNorm):
    """Divides by the root of the mean square plus 1, in float32 or wider, and returns the dtype of the input.

    The weight may have another dtype than the input, as in the assignment's norm.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (samples, width) to (samples, width)."""
        values = x.to(torch.promote_types(x.dtype, torch.float32))
        return (self.weight * values * (values.square().mean(-1, keepdim=True) + 1).rsqrt()).to(x.dtype)


class SelfAttention(nn.Module):
    """Self-attention over a sequence of three multiples of the values, averaged over the sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (samples, width) to (samples, width)."""
        sequence = x[:, None, :] * torch.tensor([[0.5], [1.0], [2.0]], dtype=x.dtype)
        queries, keys, values = self.mix(sequence).chunk(3, dim=-1)
        mixed = (queries @ keys.mT).softmax(-1) @ values
        output: torch.Tensor = self.out(mixed.mean(1))
        return output


class ResidualLinear(nn.Linear):
    """A linear layer whose output is added to its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (samples, width) to (samples, width)."""
        return x + super().forward(x)


class AddedPosition(nn.Module):
    """Adds a parameter of shape (1, width) to each sample.

    Autograd hands one tensor to the sample and to the parameter as their gradient: their shapes are the same. With one
    sample alone, the parameter's hooks see this tensor, and not a sum.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (samples, width) to (samples, width)."""
        return torch.cat([sample + self.weight for sample in torch.split(x, 1)])


class ComplexMagnitude(nn.Linear):
    """The absolute values of a linear map whose weight is complex."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, bias=False, dtype=torch.complex128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (samples, width) to (samples, width), complex to real."""
        return super().forward(x).abs()
