"""The sharded optimizer beside the one that it wraps: the same parameters and gradients, so the same result."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from side_by_side import assert_close
from torch import Tensor, nn
from torch.optim import Optimizer

from reference.adapters import get_sharded_optimizer

Groups = Callable[[list[nn.Parameter]], Any]
SHAPES = ((4, 6), (6,), (6, 6), (3,), (6, 3), (), (0, 2), (5, 1))
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.complex128: 1e-12}


def drawn(seed: int, shape: Iterable[int], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(tuple(shape), dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def parameters(
    shapes: Iterable[Iterable[int]] = SHAPES, dtypes: Iterable[torch.dtype] = (torch.float64,)
) -> list[nn.Parameter]:
    """Parameters of these shapes, the dtypes in turn, the same at each call and on every rank."""
    kinds = list(dtypes)
    return [nn.Parameter(drawn(n, shape, kinds[n % len(kinds)])) for n, shape in enumerate(shapes)]


def two_groups(all_of_them: list[nn.Parameter]) -> list[dict[str, Any]]:
    """The first three with options of their own, the others with the defaults."""
    return [{"params": all_of_them[:3], "lr": 0.3, "weight_decay": 0.2}, {"params": all_of_them[3:]}]


class BesideUnsharded:
    """A sharded and an unsharded optimizer, each with parameters of its own.

    Attributes:
        mine: the parameters of `sharded`.
        twins: those of `unsharded`.
    """

    def __init__(
        self,
        optimizer_cls: type[Optimizer],
        groups: Groups = lambda all_of_them: all_of_them,
        make: Callable[[], list[nn.Parameter]] = parameters,
        **options: Any,
    ) -> None:
        self.mine, self.twins = make(), make()
        self.new = lambda: get_sharded_optimizer(groups(self.mine), optimizer_cls, **options)
        self.new_unsharded = lambda: optimizer_cls(groups(self.twins), **options)
        self.sharded, self.unsharded = self.new(), self.new_unsharded()

    @property
    def both(self) -> list[tuple[list[nn.Parameter], Optimizer]]:
        return [(self.mine, self.sharded), (self.twins, self.unsharded)]

    def train(self, steps: Iterable[int], *, without: Iterable[int] = ()) -> None:
        """Take these steps with both, comparing after each; parameters `without` get no gradient."""
        for step in steps:
            self.draw_gradients(step, without=without)
            self.update()

    def draw_gradients(self, step: int, *, without: Iterable[int] = ()) -> None:
        for these, optimizer in self.both:
            optimizer.zero_grad()
            for number, parameter in enumerate(these):
                if number not in without and parameter.requires_grad:
                    gradient = drawn(1000 * (step + 1) + number, parameter.shape, parameter.dtype)
                    parameter.grad = gradient.to(parameter.device)

    def update(self) -> None:
        self.sharded.step()
        self.unsharded.step()
        self.assert_parameters_equal()

    def assert_parameters_equal(self) -> None:
        for number, (mine, twin) in enumerate(zip(self.mine, self.twins, strict=True)):
            tolerance = TOLERANCES[twin.dtype]
            assert_close(mine.detach(), twin.detach(), tolerance, f"parameter {number}, rank {dist.get_rank()}")


def owned(optimizer: Optimizer) -> list[list[int]]:
    """Numbers of the parameters that each rank holds state for, in the order of the groups."""
    everything = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    shares: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(shares, [number for number, p in enumerate(everything) if optimizer.state.get(p)])
    return shares


def options_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]


def whole_state(optimizer: Optimizer) -> dict[str, Any]:
    """The whole optimizer's state, on every rank."""
    for rank in range(dist.get_world_size()):
        optimizer.consolidate_state_dict(rank)
    return optimizer.state_dict()


def assert_states_equal(mine: dict[str, Any], twins: dict[str, Any]) -> None:
    assert mine["param_groups"] == twins["param_groups"]
    assert list(mine["state"]) == list(twins["state"])
    for number, state in twins["state"].items():
        assert list(mine["state"][number]) == list(state)
        for name, value in state.items():
            assert_close(torch.as_tensor(mine["state"][number][name]), torch.as_tensor(value), 1e-12, name)
