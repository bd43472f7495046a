"""Models with modules that gather, free or hand on parameters and outputs in unusual ways."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from reference_models import DTYPE, INPUTS, WIDTH, around, linear
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class HeadIsEmbedding(nn.Module):
    """A language model whose head is its embedding: the parameter that is used first and last."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, WIDTH, dtype=DTYPE)
        self.middle, self.norm = linear(), nn.LayerNorm(WIDTH, dtype=DTYPE)
        self.head = nn.Linear(WIDTH, 5, bias=False, dtype=DTYPE)
        self.head.weight = self.embedding.weight
        self.last = linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = (x.sum(1).abs() * 10).long() % 5
        return self.last(self.head(self.norm(torch.tanh(self.middle(self.embedding(tokens))))))


class Attention(nn.Module):
    """torch's, which computes with the weight of a child that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = linear(INPUTS), linear(WIDTH, 3)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True, dtype=DTYPE)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)[:, None]
        return self.last(self.attention(hidden, hidden, hidden)[0][:, 0])


class Scaled(nn.Module):
    """Computes with its own matrix, also detached, before and after it calls others, one of which may have it too."""

    def __init__(self, *, trainable: bool, tied: bool) -> None:
        super().__init__()
        self.mixing = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=DTYPE), requires_grad=trainable)
        self.first, self.middle, self.last = linear(INPUTS), linear(), linear(WIDTH, 3)
        if tied:
            self.middle.weight = self.mixing

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.middle(torch.tanh(self.first(x) @ self.mixing))
        return self.last(torch.tanh(hidden @ self.mixing) + hidden @ self.mixing.detach())


class Recurrent(nn.Module):
    """torch's LSTM keeps its parameters in a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(INPUTS, WIDTH, dtype=DTYPE), linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(x[None])[0][0])


def hooked() -> nn.Module:
    """A layer with a hook of the user's that computes with its parameter before it does."""
    layer = linear()
    layer.register_forward_pre_hook(lambda layer, inputs: (inputs[0] @ layer.weight,))
    return layer


MODULES: dict[str, Callable[[], nn.Module]] = {
    "head_is_embedding": HeadIsEmbedding,
    "attention": Attention,
    "matrix_of_its_own": lambda: Scaled(trainable=True, tied=False),
    "frozen_matrix_of_its_own": lambda: Scaled(trainable=False, tied=False),
    "matrix_shared_with_another": lambda: Scaled(trainable=True, tied=True),
    "frozen_matrix_shared_with_another": lambda: Scaled(trainable=False, tied=True),
    "recurrent": Recurrent,
    "hooked": lambda: around(hooked()),
    "weight_norm": lambda: around(nn.utils.parametrizations.weight_norm(linear())),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2, dtype=DTYPE), nn.BatchNorm2d(3, dtype=DTYPE).eval(), nn.Flatten()
    ),
}
"""What a model may be made of."""


class Checkpointed(nn.Module):
    """Layers of which activation checkpointing computes the forward again in backward."""

    def __init__(self, *, use_reentrant: bool, frozen: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.use_reentrant = linear(INPUTS), linear(WIDTH, 3), use_reentrant
        self.middle = nn.Sequential(linear(), nn.Tanh(), linear().requires_grad_(not frozen), nn.Tanh())

    def forward(self, x: Tensor, *, times: int = 1) -> Tensor:
        hidden = torch.tanh(self.first(x))
        for _ in range(times):
            hidden = checkpoint(self.middle, hidden, use_reentrant=self.use_reentrant)
        return self.last(hidden)


@dataclasses.dataclass
class Found:
    hidden: Tensor


class Returning(nn.Module):
    """Two layers, the first of which takes and returns what `pack` makes of a tensor."""

    class First(nn.Module):
        def __init__(self, pack: Callable[[Tensor], Any]) -> None:
            super().__init__()
            self.weight, self.pack = nn.Parameter(torch.randn(INPUTS, WIDTH, dtype=DTYPE)), pack

        def forward(self, *x: Tensor, scale: dict[str, list[Tensor]]) -> Any:
            return self.pack(torch.tanh(x[0] @ (self.weight * self.weight)) * scale["by"][0])

    def __init__(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.before, self.first, self.last = linear(INPUTS, INPUTS), self.First(pack), linear(WIDTH, 3)
        self.unpack = unpack

    def forward(self, x: Tensor) -> Tensor:
        scale = {"by": [torch.full((), 2.0, dtype=DTYPE)]}
        return self.last(self.unpack(self.first(self.before(x), x, scale=scale)))


class Tell(torch.autograd.Function):
    """Calls a function when backward comes by."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tell: Callable[[], None]) -> Tensor:
        ctx.tell = tell
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.tell()
        return gradient, None


class Telling(nn.Linear):
    """Calls a function when it computes, in forward and in backward."""

    tell: Callable[[], None]

    def forward(self, x: Tensor) -> Tensor:
        self.tell()
        return Tell.apply(super().forward(x), self.tell)


class HandsOn(nn.Linear):
    """Returns its input beside its output."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x), x


class Residual(nn.Module):
    """Adds to the output of a layer what went into it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = linear(INPUTS), HandsOn(6, 6, dtype=DTYPE), linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden, handed_on = self.middle(self.first(x))
        return self.last(hidden + handed_on)
