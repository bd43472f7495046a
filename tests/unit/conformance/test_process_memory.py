"""The weight of optimizer state, where threads free memory late."""

from itertools import accumulate, chain

import pytest
import torch

from conformance.ranks import process_memory

WARM, PLAIN, ADAM = 9000, 1600, 8000
LATE = 50_000


@pytest.mark.parametrize("late", [None, 1, 2, 3, 4])
@pytest.mark.parametrize("weigh", ["_allocated_for_good", "_elsewhere"])
def test_memory_that_is_freed_late_is_not_state(monkeypatch, weigh, late):
    growths = [WARM, PLAIN, ADAM, PLAIN, ADAM, 0]
    if late is not None:  # counted for one optimizer, and freed while the next one is weighed
        growths[late] += LATE
        growths[late + 1] -= LATE
    ends = list(accumulate(growths))
    again = weigh == "_allocated_for_good"  # it is also called after later steps, which add nothing
    readings = chain.from_iterable((end - grown, end, *[end] * again) for grown, end in zip(growths, ends, strict=True))
    for name in ("_allocated_for_good", "_elsewhere"):
        monkeypatch.setattr(process_memory, name, readings.__next__ if name == weigh else lambda: 0)
    weighed = process_memory.process_state_bytes(
        lambda copies, optimizer_cls, **given: optimizer_cls(copies, **given),
        [torch.ones(2, 3)],
        torch.optim.Adam,
        {"lr": 0.1},
    )
    assert weighed is not None
    assert weighed <= (ADAM - PLAIN) // 16
    if late is None:
        assert weighed == (ADAM - PLAIN) // 16
