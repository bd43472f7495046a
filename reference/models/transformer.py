"""A decoder-only transformer language model in the sizes of the CS336 assignment on systems.

It is the model that the course's first assignment builds: pre-norm blocks of causal self-attention with rotary position
embeddings and a SwiGLU feed-forward network. It uses RMSNorm, no biases and no dropout, and its output weights are not
tied to the embedding. It has no buffers: each forward computes the angles of the rotary embedding, so a data-parallel
wrapper has only parameters to keep equal.

Sources: Vaswani et al., "Attention Is All You Need" (2017); Su et al., "RoFormer" (2021); Zhang and Sennrich, "Root
Mean Square Layer Normalization" (2019); Shazeer, "GLU Variants Improve Transformer" (2020).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own name for it
from torch import Tensor, nn

VOCABULARY = 10_000
_THETA = 10_000.0  # base of the rotary embedding's wavelengths


@dataclass(frozen=True)
class Size:
    """The numbers that define a size: it has about `layers * (4 d_model^2 + 3 d_model d_ff)` parameters."""

    d_model: int
    d_ff: int
    layers: int
    heads: int


SIZES = {
    "tiny": Size(64, 256, 2, 4),  # 1.4 million parameters, for a first try
    "50m": Size(512, 2048, 10, 8),  # 52 million parameters, for the benchmarks
    "small": Size(768, 3072, 12, 12),
    "medium": Size(1024, 4096, 24, 16),
    "large": Size(1280, 5120, 36, 20),
    "xl": Size(1600, 6400, 48, 25),
    "xl-0.5b": Size(1280, 3456, 24, 20),  # 0.50 billion parameters: fits on one GPU
    "2.7b": Size(2560, 10240, 32, 32),
}


def builder(size: str) -> Callable[[], "Transformer"]:
    """A function that makes the transformer of a size."""
    return lambda: Transformer(SIZES[size])


class Transformer(nn.Module):
    """From token ids of shape (batch, length), integers, to logits of shape (batch, length, vocabulary)."""

    def __init__(self, size: Size, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.head_width = size.d_model // size.heads
        self.embedding = nn.Embedding(vocabulary, size.d_model)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.d_model, eps=1e-5)
        self.output = linear(size.d_model, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at every position."""
        x = self.embedding(tokens)
        rotation = rotary_angles(tokens.shape[-1], self.head_width, tokens.device)
        for block in self.blocks:
            x = block(x, rotation)
        logits: Tensor = self.output(self.norm(x))
        return logits


class Block(nn.Module):
    """Attention, then feed-forward: each gets the normalized input, and its output is added to the input."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.d_model, eps=1e-5)
        self.attention = Attention(size.d_model, size.heads)
        self.feed_forward_norm = nn.RMSNorm(size.d_model, eps=1e-5)
        self.feed_forward = SwiGLU(size.d_model, size.d_ff)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """From `x` of shape (batch, length, d_model) to the same shape."""
        x = x + self.attention(self.attention_norm(x), rotation)
        added: Tensor = self.feed_forward(self.feed_forward_norm(x))
        return x + added


class Attention(nn.Module):
    """Causal multi-head self-attention: each position mixes the values of itself and of earlier positions."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (linear(d_model, d_model) for _ in range(3))
        self.output = linear(d_model, d_model)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """From `x` of shape (batch, length, d_model) to the same shape."""
        query, key = (rotate(self._by_head(project(x)), rotation) for project in (self.query, self.key))
        mixed = F.scaled_dot_product_attention(query, key, self._by_head(self.value(x)), is_causal=True)
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output

    def _by_head(self, x: Tensor) -> Tensor:
        """From (batch, length, d_model) to (batch, heads, length, width)."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


class SwiGLU(nn.Module):
    """Feed-forward network whose hidden units are gated: `down(silu(gate(x)) * up(x))`."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = linear(d_model, d_ff), linear(d_model, d_ff), linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """From `x` of shape (batch, length, d_model) to the same shape, each position by itself."""
        output: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return output


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer without bias, whose weights keep the variance in forward and backward (Glorot and Bengio, 2010)."""
    layer = nn.Linear(inputs, outputs, bias=False)
    std = math.sqrt(2 / (inputs + outputs))
    nn.init.trunc_normal_(layer.weight, std=std, a=-3 * std, b=3 * std)
    return layer


def rotary_angles(length: int, width: int, device: torch.device) -> Tensor:
    """The angle by which each pair of features is rotated at each position: shape (length, width / 2), float32."""
    wavelengths = _THETA ** (torch.arange(0, width, 2, device=device) / width)
    return torch.arange(length, device=device)[:, None] / wavelengths


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate each pair of neighbouring features of `x`, shape (..., length, width), by its position's angle."""
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
