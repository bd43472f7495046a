"""How many bytes of optimizer state a process holds; tensors of other classes."""

import weakref
from collections import deque
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

from conformance.ranks.optimizer_memory import state_bytes
from conformance.ranks.parameters import parameters_by_name, plain


def stepped(*sizes):
    params = [nn.Parameter(torch.ones(size)) for size in sizes]
    optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    return optimizer


def in_one_buffer():
    optimizer = stepped(3, 5)
    flat = torch.zeros(8)
    for state, view in zip(optimizer.state.values(), (flat[:3], flat[3:]), strict=True):
        state["momentum_buffer"] = view
    return optimizer


def listed_twice():
    optimizer = stepped(3, 5)
    optimizer.inner = stepped(1)
    optimizer.inner.state = {0: next(iter(optimizer.state.values()))}
    return optimizer


def whole_and_in_pieces():
    optimizer = in_one_buffer()
    flat = next(iter(optimizer.state.values()))["momentum_buffer"]._base
    optimizer.inner = stepped(8)
    optimizer.inner.state = {0: {"momentum_buffer": flat, "step": torch.tensor(1.0)}}
    return optimizer


def empty_too():
    return stepped(8, 0)


@dataclass(slots=True)
class Slots:
    inner: torch.optim.Optimizer


class Outer:
    def __init__(self, kept):
        self.kept = kept


def closure_of(optimizer):
    def step():
        optimizer.step()

    return step


@pytest.mark.parametrize(
    "keep",
    [Slots, closure_of, lambda one: partial(one.step), lambda one: deque([one])],
    ids=["slots", "closure", "partial", "deque"],
)
def test_an_inner_optimizer_is_found_wherever_it_is_kept(keep):
    assert state_bytes(Outer(keep(stepped(3, 5)))) == 8 * 4


TABLE = weakref.WeakKeyDictionary()
BY_NUMBER = {}


class Facade:
    """Like an optimizer of all parameters, of which the inner ones are to be found in a table only."""

    def __init__(self, inner):
        self.param_groups = [{"params": [*inner.param_groups[0]["params"], nn.Parameter(torch.ones(7))]}]


class OptimizerFacade(torch.optim.SGD):
    """Is an optimizer, and keeps no state itself."""

    def __init__(self, inner):
        super().__init__(inner.param_groups[0]["params"], lr=0.1)


@pytest.mark.parametrize("facade", [Facade, OptimizerFacade])
def test_an_inner_optimizer_is_found_in_a_weak_table(facade):
    others, inner = stepped(11), stepped(3, 5)
    outer = facade(inner)
    TABLE[outer], TABLE[others] = inner, stepped(13)
    del inner
    assert state_bytes(outer) == 8 * 4


def test_an_optimizer_of_views_is_found_in_a_table_of_the_module():
    whole = nn.Parameter(torch.ones(8))
    BY_NUMBER[0] = inner = torch.optim.SGD([whole.detach()[2:5]], lr=0.1, momentum=0.9)
    inner.param_groups[0]["params"][0].grad = torch.ones(3)
    inner.step()
    assert state_bytes(torch.optim.SGD([whole], lr=0.1)) == 3 * 4


def test_what_an_earlier_optimizer_has_left_is_not_counted():
    earlier = stepped(8)
    later = torch.optim.SGD(earlier.param_groups[0]["params"], lr=0.1)
    earlier.itself = earlier
    del earlier
    assert state_bytes(later) == 0


@pytest.mark.parametrize("make", [in_one_buffer, listed_twice, whole_and_in_pieces, empty_too, lambda: stepped(3, 5)])
def test_memory_counts_once(make):
    assert state_bytes(make()) == 8 * 4


class Compressed(torch.Tensor):
    """Float32 numbers without memory of their own: `kept` holds them as bfloat16."""

    @staticmethod
    def __new__(cls, kept):
        return torch.Tensor._make_wrapper_subclass(cls, kept.shape, dtype=torch.float32)

    def __init__(self, kept):
        self.kept = kept

    @classmethod
    def __torch_dispatch__(cls, function, _, args=(), kwargs=None):
        args, kwargs = tree_map(lambda one: one.kept.float() if isinstance(one, cls) else one, (args, kwargs or {}))
        return function(*args, **kwargs)


def test_a_wrapper_subclass_counts_as_the_memory_that_it_holds():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(8))], lr=0.1)
    optimizer.state["first"] = {"momentum_buffer": Compressed(torch.ones(8, dtype=torch.bfloat16))}
    assert state_bytes(optimizer) == 8 * 2


def test_an_optimizer_of_a_wrapper_subclass_is_found_by_the_memory_that_it_holds():
    whole = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    BY_NUMBER[1] = inner = torch.optim.SGD([Compressed(whole.detach()[2:5])], lr=0.1)
    inner.state["first"] = {"momentum_buffer": torch.ones(3)}
    assert state_bytes(torch.optim.SGD([whole], lr=0.1)) == 3 * 4


def test_a_copy_of_a_wrapper_subclass_is_a_tensor_of_torchs_own_type():
    copy = plain(Compressed(torch.ones(8, dtype=torch.bfloat16)))
    assert type(copy) is torch.Tensor
    assert torch.equal(copy, torch.ones(8))


def test_a_wrapped_model_that_shards_a_parameter_is_refused():
    model = nn.Linear(2, 3)
    model.weight.to_local = lambda: model.weight.detach()[:1]
    with pytest.raises(
        TypeError, match=r"'weight' of the wrapped model is sharded: this rank holds \[1, 2\] of \[3, 2\]"
    ):
        parameters_by_name(model, ("weight", "bias"), {})


def test_without_an_optimizer_there_is_nothing_to_state_bytes():
    assert state_bytes(object()) is None
