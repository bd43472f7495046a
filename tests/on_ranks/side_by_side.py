"""Data-parallel training beside training in one process: the same model and batches, so the same result."""

import gc
from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from reference_models import DTYPE, INPUTS, OUTPUTS, seeded
from reference_wrappers import NAIVE, Wrapper
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

BATCH = 3  # samples per rank


def sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)


class SideBySide:
    """One model trained by all ranks, each on its batch, and its twin trained by every rank alone on all batches.

    The trained model starts from weights of its own on every rank, the twin from those of rank 0.

    Attributes:
        module: the trained model; `ddp_model` is the wrapped one.
        optimizer: its optimizer.
        twin: what single-process training makes of rank 0's model.
        twin_optimizer: its optimizer.
    """

    def __init__(
        self,
        make_model: Callable[[], nn.Module],
        make_optimizer: Callable[[nn.Module], Optimizer] = sgd,
        make_twin_optimizer: Callable[[nn.Module], Optimizer] | None = None,
        *,
        wrapper: Wrapper = NAIVE,
    ) -> None:
        self.wrapper = wrapper
        self.module, self.twin = seeded(make_model, seed=dist.get_rank()), seeded(make_model, seed=0)
        self.ddp_model = wrapper.wrap(self.module)
        self.optimizer = make_optimizer(self.module)
        self.twin_optimizer = (make_twin_optimizer or make_optimizer)(self.twin)

    def train(self, steps: Iterable[int], **by_rank: Callable[[int], Any]) -> None:
        """Train both on the batches of these steps, comparing them after each."""
        for step in steps:
            self.zero_grad()
            self.backward(step, **by_rank)
            self.update()

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        self.wrapper.before_batch(self.ddp_model, self.optimizer)
        for optimizer in (self.optimizer, self.twin_optimizer):
            optimizer.zero_grad(set_to_none=set_to_none)

    def backward(self, step: int, **by_rank: Callable[[int], Any]) -> None:
        """One forward and backward of both; `by_rank` gives each keyword of the forward for a rank."""
        self.local_loss(step, **by_rank).backward()
        self.finish()
        self.twin_backward(step, **by_rank)

    def local_loss(self, step: int, **by_rank: Callable[[int], Any]) -> Tensor:
        """The loss of the wrapped model on this rank's batch."""
        rank = dist.get_rank()
        return loss(self.ddp_model, [batch(step, rank)], **{name: value(rank) for name, value in by_rank.items()})

    def finish(self) -> None:
        """Have the gradients averaged."""
        self.wrapper.after_backward(self.ddp_model, self.optimizer)

    def twin_backward(self, step: int, **by_rank: Callable[[int], Any]) -> None:
        ranks = range(dist.get_world_size())
        if by_rank:  # ranks call the model in different ways, which one call on all batches cannot
            for rank in ranks:
                keywords = {name: value(rank) for name, value in by_rank.items()}
                (loss(self.twin, [batch(step, rank)], **keywords) / len(ranks)).backward()
        else:
            loss(self.twin, [batch(step, rank) for rank in ranks]).backward()

    def update(self) -> None:
        """Let both optimizers take a step, after comparing the gradients; then compare the parameters."""
        self.assert_gradients_equal()
        self.optimizer.step()
        self.twin_optimizer.step()
        self.assert_parameters_equal()

    def assert_gradients_equal(self) -> None:
        for (name, mine), twins in zip(self.module.named_parameters(), self.twin.parameters(), strict=True):
            assert (mine.grad is None) == (twins.grad is None), name
            if twins.grad is not None:
                assert_close(mine.grad, twins.grad, self.tolerance, f"gradient of {name}")

    def assert_parameters_equal(self) -> None:
        for (name, mine), twins in zip(self.module.named_parameters(), self.twin.parameters(), strict=True):
            assert_close(mine.detach(), twins.detach(), self.tolerance, name)

    @property
    def tolerance(self) -> float:
        return 1e-5 if any(p.dtype == torch.float32 for p in self.twin.parameters()) else 1e-12


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, others for every step and rank."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return (
        torch.randn(BATCH, INPUTS, generator=generator, dtype=DTYPE),
        torch.randn(BATCH, OUTPUTS, generator=generator, dtype=DTYPE),
    )


def loss(model: nn.Module, batches: list[tuple[Tensor, Tensor]], **keywords: Any) -> Tensor:
    """The mean squared error on the concatenation of the batches."""
    inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return nn.functional.mse_loss(model(inputs, **keywords), targets)


def assert_close(actual: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    """Compare in the maximum norm of the whole tensor: single elements may cancel to nothing but rounding."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), what
    if expected.numel():
        difference, size = (actual - expected).abs().max().item(), expected.abs().max().item()
        assert difference <= tolerance * size, f"{what}: off by {difference}, values up to {size}"


def assert_freed(wrapper: Wrapper, make_model: Callable[[], nn.Module]) -> None:
    """Wrap a model and train it; once nobody holds them, wrapper and parameters have to be gone."""
    model = wrapper.wrap(make_model())
    loss(model, [batch(0, 0)]).backward()
    wrapper.after_backward(model, sgd(model))
    gone = [ref(model), ref(next(model.parameters()))]
    del model
    gc.collect()
    assert [one() for one in gone] == [None, None]


def assert_same_on_all_ranks(tensors: Iterable[Tensor]) -> None:
    """Compare every bit with rank 0's."""
    for tensor in tensors:
        mine = tensor.detach().contiguous().view(-1).view(torch.uint8)
        rank_0s = mine.clone()
        dist.broadcast(rank_0s, src=0)
        assert torch.equal(mine, rank_0s)
