"""Small models for the tests of the references, in float64 so that a wrong result stands out from rounding."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

INPUTS, WIDTH, OUTPUTS = 4, 6, 3
DTYPE = torch.float64


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The model that `make` draws from this seed; torch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def linear(inputs: int = WIDTH, outputs: int = WIDTH) -> nn.Linear:
    return nn.Linear(inputs, outputs, dtype=DTYPE)


def mlp() -> nn.Module:
    """Six parameters, of three shapes each for weights and biases."""
    return nn.Sequential(linear(INPUTS), nn.Tanh(), linear(), nn.Tanh(), linear(WIDTH, OUTPUTS))


def around(middle: nn.Module) -> nn.Module:
    """Put `middle`, which maps WIDTH features to as many, between two ordinary layers."""
    return nn.Sequential(linear(INPUTS), nn.Tanh(), middle, nn.Tanh(), linear(WIDTH, OUTPUTS))


class Uses(nn.Module):
    """Whatever `use` makes of its input and one parameter."""

    def __init__(self, values: Tensor, use: Callable[[Tensor, Tensor], Tensor], *, trainable: bool = True) -> None:
        super().__init__()
        self.parameter = nn.Parameter(values, requires_grad=trainable)
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(x, self.parameter)


class Chain(nn.Module):
    """A hidden layer, then those of three equally shaped ones that `use` names, in its order.

    Which parameters get a gradient, and in which order, is thus decided by the call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = linear(INPUTS), linear(WIDTH, OUTPUTS)
        self.links = nn.ModuleList(linear() for _ in range(3))

    def forward(self, x: Tensor, *, use: Sequence[int] = (0, 1, 2)) -> Tensor:
        hidden = torch.tanh(self.first(x))
        for link in use:
            hidden = torch.tanh(self.links[link](hidden))
        return self.last(hidden)


class Buffered(nn.Module):
    """A layer among buffers of every kind: its output depends on `scale`, each training forward changes `count`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear(INPUTS, OUTPUTS)
        self.register_buffer("scale", 1 + torch.rand((), dtype=DTYPE))
        self.register_buffer("count", torch.randint(100, (1,)))
        self.register_buffer("mask", torch.rand(8) < 0.5)
        self.register_buffer("hidden", torch.randn(2, 3, dtype=DTYPE), persistent=False)
        self.register_buffer("transposed", torch.randn(2, 3, dtype=DTYPE).t())
        self.register_buffer("complex", torch.randn(2, dtype=torch.complex64))
        self.register_buffer("has_nan", torch.cat([torch.randn(1), torch.tensor([float("nan")])]))
        self.register_buffer("nothing", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.count += 1
        return self.layer(x) * self.scale


def tied() -> nn.Module:
    first, second = linear(), linear()
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second)


def reused() -> nn.Module:
    layer = linear()
    return nn.Sequential(layer, nn.Tanh(), layer)


def _drawn(*shape: int, dtype: torch.dtype = DTYPE) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


ODD_PARTS: dict[str, Callable[[], nn.Module]] = {
    "frozen": lambda: linear().requires_grad_(requires_grad=False),
    "frozen_integer": lambda: Uses(torch.randint(1, 9, (WIDTH,)), torch.mul, trainable=False),
    "tied": tied,
    "reused": reused,
    "0-dim": lambda: Uses(_drawn(1).reshape(()), torch.mul),
    "empty": lambda: Uses(_drawn(0, WIDTH), lambda x, p: x + p.sum()),
    "transposed": lambda: Uses(_drawn(WIDTH, WIDTH).t(), torch.matmul),
    "gaps_in_memory": lambda: Uses(_drawn(WIDTH, 2 * WIDTH)[:, ::2], torch.matmul),
    "float32": lambda: Uses(_drawn(WIDTH, dtype=torch.float32), torch.mul),
    "complex": lambda: Uses(_drawn(WIDTH, dtype=torch.complex128), lambda x, p: (x * p).real + (x * p).imag),
    "larger_than_the_rest": lambda: nn.Sequential(linear(WIDTH, 40), nn.Tanh(), linear(40, WIDTH)),
}
"""Parts that map WIDTH features to WIDTH features and have a parameter that careless code gets wrong."""


def every_odd_part() -> nn.Module:
    return nn.Sequential(*(make() for make in ODD_PARTS.values()))
