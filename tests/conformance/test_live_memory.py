"""What is in memory is weighed wherever it is kept: under a name, by autograd, in part of a storage, or no longer."""

import torch
from torch import nn

from conformance.components.fsdp.on_ranks import LiveMemory

WHOLE = 8 * 8 * 4  # bytes


def test_what_is_named_lives_and_what_is_dropped_does_not():
    with LiveMemory(WHOLE) as memory:
        kept = torch.ones(8, 8)
        torch.ones(8, 8)
        assert memory.bytes() == WHOLE
        del kept
    assert memory.bytes() == 0


def test_only_what_operations_give_and_what_is_large_enough_counts():
    before = torch.ones(8, 8)
    with LiveMemory(WHOLE) as memory:
        small = torch.ones(8, 7)
        assert memory.bytes() == 0
        before.t()
        assert memory.bytes() == WHOLE
    del before
    assert (memory.bytes(), small.shape) == (0, (8, 7))


def test_autograd_keeps_a_weight_under_another_data():
    weight = nn.Parameter(torch.ones(4))
    with LiveMemory(WHOLE) as memory:
        weight.data = torch.ones(8, 8)
        output = nn.functional.linear(torch.ones(1, 8, requires_grad=True), weight)
        weight.data = torch.ones(4)
        assert memory.bytes() == WHOLE
        del output
    assert memory.bytes() == 0


def test_memory_that_was_given_back_is_not_counted_though_a_view_is_there():
    with LiveMemory(WHOLE) as memory:
        whole = torch.ones(8, 8)
        view = whole.t()
        whole.untyped_storage().resize_(0)
    assert (memory.bytes(), view.shape) == (0, (8, 8))


def test_parts_that_lie_together_are_not_counted_and_what_is_gathered_of_them_is():
    together = torch.ones(16, 8)
    with LiveMemory(WHOLE, [together.untyped_storage()]) as memory:
        part = together[:4]
        assert memory.bytes() == 0
        whole = torch.cat([part, part])
    assert (memory.bytes(), whole.shape) == (WHOLE, (8, 8))
