"""The sharded optimizer trains as the optimizer that it wraps."""

import inspect
from functools import partial
from typing import Any

import pytest
import torch
from beside_unsharded import SHAPES, TOLERANCES, BesideUnsharded, drawn, parameters, two_groups
from reference_models import Chain, around, every_odd_part
from reference_wrappers import WRAPPERS, Wrapper
from side_by_side import SideBySide, assert_same_on_all_ranks
from torch import nn, optim
from torch.optim import LBFGS, SGD, AdamW, Optimizer, SparseAdam

from pytest_ddp import DDPContext, distributed
from reference.adapters import get_sharded_optimizer

TORCHS = {
    name: each
    for name, each in vars(optim).items()
    if inspect.isclass(each) and issubclass(each, Optimizer) and each not in {Optimizer, LBFGS, SparseAdam}
}
OPTIONS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "sgd_dampened": (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    "sgd_nesterov": (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam_amsgrad": (optim.Adam, {"lr": 0.02, "amsgrad": True, "maximize": True}),
    "adamw_foreach": (AdamW, {"lr": 0.02, "foreach": True}),
    "adamw_fused": (AdamW, {"lr": 0.02, "fused": True}),
    "adamw_tensor_lr": (AdamW, {"lr": torch.tensor(0.02)}),
    "rmsprop_centered": (optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.5, "eps": 1e-3}),
    "adagrad_begun": (optim.Adagrad, {"lr": 0.05, "initial_accumulator_value": 0.1}),
}


class ByNorm(Optimizer):
    """Steps of fixed length: an update that looks at one parameter as a whole. Counts steps in its groups."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "steps": 0})

    def step(self, closure: None = None) -> None:
        assert closure is None
        for group in self.param_groups:
            group["steps"] += 1
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.state[parameter]["norm"] = parameter.grad.norm()
                    length = group["lr"] / group["steps"] / (self.state[parameter]["norm"] + 1)
                    parameter.data = parameter.data - length * parameter.grad  # a new tensor, not in place


def matrices() -> list[nn.Parameter]:
    return parameters([(4, 6), (6, 6), (6, 3)])


# Optimizers, dtypes, layouts


@distributed(world_size=2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", TORCHS)
def test_every_optimizer_of_torch_trains_as_unsharded(name: str, dtype: torch.dtype) -> None:
    shapes = {"Muon": [(4, 6), (6, 6), (6, 3)], "Adafactor": SHAPES[:5]}.get(name, SHAPES)  # not for just any tensor
    beside = BesideUnsharded(TORCHS[name], make=partial(parameters, shapes, [dtype]))
    beside.train(range(3))
    assert_same_on_all_ranks(beside.mine)


@distributed(world_size=[1, 3])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_reaches_the_wrapped_optimizer(name: str) -> None:
    optimizer_cls, options = OPTIONS[name]
    beside = BesideUnsharded(optimizer_cls, **options)
    beside.train(range(4))
    assert_same_on_all_ranks(beside.mine)


@distributed(world_size=3)
def test_a_custom_optimizer_may_count_in_its_groups_and_replace_tensors() -> None:
    beside = BesideUnsharded(ByNorm, two_groups, lr=0.3)
    beside.train(range(4))
    assert [group["steps"] for group in beside.sharded.param_groups] == [4, 4]


@distributed(world_size=2)
def test_sparse_gradients_are_taken() -> None:
    beside = BesideUnsharded(SparseAdam, make=matrices)
    with torch.sparse.check_sparse_tensor_invariants():  # torch warns of whoever leaves that open
        for these, optimizer in beside.both:
            for parameter in these:
                rows = drawn(7, [1, parameter.shape[1]])
                parameter.grad = torch.sparse_coo_tensor([[1]], rows, parameter.shape)
            optimizer.step()
    beside.assert_parameters_equal()


@distributed(world_size=2)
def test_parameters_of_several_dtypes_are_trained_together() -> None:
    beside = BesideUnsharded(AdamW, make=partial(parameters, dtypes=TOLERANCES), lr=0.02)
    beside.train(range(4))
    assert_same_on_all_ranks(beside.mine)


@distributed(world_size=4)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_there_may_be_more_ranks_than_parameters(count: int) -> None:
    BesideUnsharded(AdamW, make=lambda: parameters()[:count]).train([0, 1])


# Frozen parameters, parameters without gradients


@distributed(world_size=2)
def test_parameters_without_a_gradient_do_not_move(ddp: DDPContext) -> None:
    beside = BesideUnsharded(AdamW, lr=0.02)
    beside.train([0])
    before = beside.mine[2].detach().clone()
    beside.train([1, 2], without=[2, 3])
    assert torch.equal(beside.mine[2], before), f"on rank {ddp.rank}"
    beside.train([3])


@distributed(world_size=2)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_parameters_may_be_frozen_and_unfrozen_later(set_to_none: bool) -> None:  # noqa: FBT001  a parameter of the test
    def some_frozen() -> list[nn.Parameter]:
        return [p.requires_grad_(number not in {0, 3, 4}) for number, p in enumerate(parameters())]

    beside = BesideUnsharded(AdamW, make=some_frozen, lr=0.02)
    beside.train([0])
    for trainable in (True, False):
        for these, optimizer in beside.both:
            for number in (1, 3, 4):
                these[number].requires_grad_(requires_grad=trainable)
            optimizer.zero_grad(set_to_none=set_to_none)  # a gradient of zeros decays the weight, trainable or not
        beside.update()
        beside.train([1, 2])


@distributed(world_size=2)
def test_a_gradient_that_is_missing_on_one_rank_stops_no_other(ddp: DDPContext) -> None:
    """The owner's gradient counts: a rank that lacks its copy must still take part in the broadcast."""
    beside = BesideUnsharded(SGD, make=matrices, lr=0.1)
    beside.draw_gradients(0)
    for number, parameter in enumerate(beside.mine):
        if (number == 0) == (ddp.rank == 1):  # rank 0 owns parameter 1, the largest; rank 1 the two others
            parameter.grad = None
    beside.sharded.step()
    assert_same_on_all_ranks(beside.mine)


# With data-parallel wrappers


@distributed(world_size=[2, 4])
@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
def test_it_works_together_with_every_data_parallel_wrapper(wrapper: Wrapper) -> None:
    def groups(model: nn.Module) -> list[dict[str, Any]]:
        return [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[1:].parameters()}]

    training = SideBySide(
        lambda: around(every_odd_part()),
        lambda model: get_sharded_optimizer(groups(model), SGD, lr=0.05, momentum=0.9, nesterov=True),
        lambda model: SGD(groups(model), lr=0.05, momentum=0.9, nesterov=True),
        wrapper=wrapper,
    )
    training.train(range(3))
    assert_same_on_all_ranks(training.module.parameters())


@distributed(world_size=2)
def test_ranks_may_use_different_parts_of_a_model() -> None:
    training = SideBySide(
        Chain,
        lambda model: get_sharded_optimizer(model.parameters(), AdamW, lr=0.02),
        lambda model: AdamW(model.parameters(), lr=0.02),
    )
    training.train([0])
    training.train([1, 2], use=lambda rank: [(0,), (0, 1)][rank])
    training.train([3])
