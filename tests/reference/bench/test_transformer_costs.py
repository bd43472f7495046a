"""A transformer's costs on paper, held to what torch counts: parameters, operations, saved tensors."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from reference.bench import transformer_costs as costs
from reference.bench.accounting import paper
from reference.bench.transformer_costs import Batch
from reference.models.transformer import SIZES, Size, Transformer

SMALL = Size(d_model=32, d_ff=48, layers=3, heads=4)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_parameters_and_shapes_are_those_of_the_model(size: Size) -> None:
    with torch.device("meta"):
        model = Transformer(size)
    assert costs.parameters(size) == sum(p.numel() for p in model.parameters())
    assert sorted(costs.shapes(size)) == sorted(tuple(p.shape) for p in model.parameters())


@pytest.mark.parametrize(("size", "length"), [(SIZES["small"], 256), (SMALL, 16)], ids=["small", "narrow"])
def test_operations_are_those_that_torch_counts(size: Size, length: int) -> None:
    with torch.device("meta"):
        model, tokens = Transformer(size), torch.zeros(2, length + 1, dtype=torch.long)
    with FlopCounterMode(display=False) as counted:
        loss_of(model, tokens).backward()
    assert counted.get_total_flops() == costs.step_operations(size, Batch(2, length))


@pytest.mark.parametrize(("sequences", "length"), [(1, 8), (3, 16)])
def test_activations_are_the_tensors_that_autograd_saves(sequences: int, length: int) -> None:
    torch.manual_seed(0)
    model, tokens = Transformer(SMALL, vocabulary=50), torch.randint(50, (sequences, length + 1))
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in parameters:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss_of(model, tokens)
    seen = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    assert costs.activation_bytes(SMALL, Batch(sequences, length), vocabulary=50) == pytest.approx(seen, rel=0.01)


def test_the_largest_batch_fills_the_memory_and_no_more() -> None:
    size, length = SIZES["small"], 128
    states = paper("zero1", costs.parameters(size), 4).total
    one = costs.activation_bytes(size, Batch(1, length))
    assert costs.largest_batch(size, length, "zero1", 4, states + 3.5 * one) == 3
    assert costs.largest_batch(size, length, "zero1", 4, states - 1) == 0
