"""Gradients are views of their buckets: they are not copied back, and a training loop does not take them out."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from reference_collectives import recorded
from reference_models import Chain, around, every_odd_part, linear, mlp, seeded
from reference_wrappers import Wrapper
from side_by_side import SideBySide
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from pytest_ddp import DDPContext, distributed
from reference.ddp.bucketed import BucketedDDP

BYTES = 8


def bucketed(elements: int | None, first: int | None = None, *, rebuild: bool = False) -> Wrapper:
    """A wrapper with buckets of this many float64 elements."""
    size, first_size = (None if n is None else BYTES * n / 1024**2 for n in (elements, first))
    return Wrapper(
        lambda module: BucketedDDP(module, size, first_bucket_size_mb=first_size, rebuild=rebuild),
        lambda model, _optimizer: model.finish_gradient_synchronization(),
    )


def storages(module: nn.Module) -> dict[int, int]:
    """The bytes of each storage that holds gradients, by address."""
    found = [p.grad.untyped_storage() for p in module.parameters() if p.grad is not None]
    return {storage.data_ptr(): storage.nbytes() for storage in found}


@distributed(world_size=2)
def test_gradients_are_views_of_their_buckets() -> None:
    training = SideBySide(mlp, wrapper=bucketed(45))
    training.train([0])
    assert sorted(storages(training.module).values()) == [BYTES * n for n in (24, 27, 42)]


@distributed(world_size=2)
def test_views_have_the_layout_of_dense_parameters() -> None:
    training = SideBySide(lambda: around(every_odd_part()), wrapper=bucketed(None))
    training.train([0])
    for parameter in training.module.parameters():
        if parameter.grad is not None:
            assert parameter.grad.stride() == torch.empty_like(parameter).stride()
    kinds = {p.dtype for p in training.module.parameters() if p.requires_grad}
    used = [p.numel() * p.element_size() for p in training.module.parameters() if p.grad is not None]
    assert sum(storages(training.module).values()) == sum(used)
    assert len(storages(training.module)) == len(kinds)


def clip(module: nn.Module) -> None:
    clip_grad_norm_(module.parameters(), 0.01)


def replace(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = 2 * parameter.grad


def keep(_module: nn.Module) -> None:
    pass


@distributed(world_size=2)
@pytest.mark.parametrize("change", [clip, replace, keep])
@pytest.mark.parametrize("set_to_none", [True, False, None])
def test_gradients_stay_in_their_buckets(change: Callable[[nn.Module], None], set_to_none: bool | None) -> None:  # noqa: FBT001  a parameter of the test
    training = SideBySide(mlp, wrapper=bucketed(45))
    seen = []
    for step in range(3):
        if set_to_none is not None:
            training.zero_grad(set_to_none=set_to_none)
        training.backward(step)
        seen.append(storages(training.module))
        training.assert_gradients_equal()
        change(training.module)
        change(training.twin)
        training.optimizer.step()
        training.twin_optimizer.step()
    training.assert_parameters_equal()
    assert seen[0] == seen[1] == seen[2]


@distributed(world_size=2)
def test_a_gradient_that_is_being_sent_cannot_be_read() -> None:
    training = SideBySide(mlp, wrapper=bucketed(45))
    training.local_loss(0).backward()
    assert all(parameter.grad is None for parameter in training.module.parameters())
    training.finish()
    assert all(parameter.grad is not None for parameter in training.module.parameters())


def elements_sent(training: SideBySide, step: int) -> list[int]:
    with recorded() as seen:
        training.train([step])
    return [collective.bytes // BYTES for collective in seen]


@distributed(world_size=2)
@pytest.mark.parametrize(
    ("size", "first", "elements"),
    [(93, 3, [3, 90]), (45, 3, [3, 24, 42, 24]), (45, 27, [27, 42, 24]), (None, 3, [3, 90]), (27, 93, [93])],
)
def test_the_first_bucket_has_its_own_size(size: int | None, first: int, elements: list[int]) -> None:
    assert elements_sent(SideBySide(mlp, wrapper=bucketed(size, first)), 0) == elements


class Scrambled(nn.Module):
    """Layers of 42, 20 and 9 elements, used in another order than that in which they are registered."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first, self.middle = linear(2, 3), linear(4, 6), linear(6, 2)
        self.unused = linear(1, 1)
        self.first.bias.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


@distributed(world_size=2)
def test_buckets_are_rebuilt_in_the_order_of_the_first_backward() -> None:
    training = SideBySide(Scrambled, wrapper=bucketed(1, rebuild=True))
    assert elements_sent(training, 0) == [1, 1, 2, 12, 24, 3, 6]
    rebuilt = elements_sent(training, 1)
    assert sorted(rebuilt[:2]) == [3, 6]
    assert sorted(rebuilt[2:4]) == [2, 12]
    assert rebuilt[4:] == [24, 1, 1]
    assert elements_sent(training, 2) == rebuilt


@distributed(world_size=2)
def test_the_order_is_rank_0s_on_every_rank(ddp: DDPContext) -> None:
    training = SideBySide(Chain, wrapper=bucketed(42, rebuild=True))
    for step in range(3):
        training.train([step], use=lambda rank: [(0, 1, 2), (2, 0, 1)][rank])
    order = [id(p) for bucket in training.ddp_model._current_buckets() for p in bucket.parameters]
    names = [name for address in order for name, p in training.module.named_parameters() if id(p) == address]
    by_rank: list[list[str]] = [[] for _ in range(ddp.world_size)]
    dist.all_gather_object(by_rank, names)
    assert by_rank[0] == by_rank[1]
    assert [name.removeprefix("links.")[0] for name in names] == list("ll221100ff")


@distributed(world_size=2)
def test_a_rank_whose_backward_is_aborted_stays_in_step_with_the_others(ddp: DDPContext) -> None:
    training = SideBySide(mlp, wrapper=bucketed(45))

    def give_up(_gradient: Tensor) -> None:
        raise KeyError

    loss = training.local_loss(0)
    if ddp.rank == 0:
        training.module[2].weight.register_hook(give_up)
        with pytest.raises(KeyError):
            loss.backward()
        training.module[2].weight._backward_hooks.clear()
    else:
        loss.backward()
        training.finish()
    training.train([1, 2])


@distributed(world_size=2)
def test_float16_does_not_overflow_if_a_gradient_is_added_up_over_two_backwards() -> None:
    model = seeded(lambda: nn.Linear(2, 1, bias=False).half(), seed=0)
    wrapped = BucketedDDP(model, None)
    for _ in range(2):
        (model.weight * 20_000).sum().backward()
    wrapped.finish_gradient_synchronization()
    assert model.weight.grad.tolist() == [[40_000.0, 40_000.0]]
