"""Draws from the generators that the submission makes for data loaders."""

from typing import Any

import torch
from torch.utils.data import DataLoader

from conformance.ranks.boundary import stage
from conformance.ranks.context import Context
from conformance.ranks.environment import another_run

_SAMPLES = 50
_DRAWS, _MANY = 64, 2**31


def draw(context: Context) -> None:
    """Answer with the order in which a shuffling loader gives samples: with a seed, again with it, and with another.

    At first the global generators are alike on all ranks. The second time, torch's differs by rank, and clock and
    process id are those of another run. The third time, another generator of the seed is drawn from first. The answer
    also holds the first numbers of a generator.
    """
    seed = int(context.given["seed"])
    with context.watching_global_generators(seed + 1):
        made = context.call("get_ddp_generator", seed)
    context.answer["first"] = _order(made)
    torch.manual_seed(int(context.given["own"]))
    with another_run():
        context.answer["again"] = _order(context.call("get_ddp_generator", seed))
    context.answer["other_seed"] = _order(context.call("get_ddp_generator", seed + 1000))
    one, other = (context.call("get_ddp_generator", seed) for _ in range(2))
    _order(other)
    context.answer["beside_another"] = _order(one)
    with stage("drawing from this generator"):
        context.answer["stream"] = torch.randint(_MANY, (_DRAWS,), generator=context.call("get_ddp_generator", seed))


def _order(generator: Any) -> torch.Tensor:
    with stage("a DataLoader with this generator"):
        loader: DataLoader[Any] = DataLoader(range(_SAMPLES), batch_size=10, shuffle=True, generator=generator)  # type: ignore[arg-type]  # it has a length and items
        return torch.cat(list(loader))
