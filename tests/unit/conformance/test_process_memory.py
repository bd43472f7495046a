"""The weight of optimizer state, where threads free memory late."""

from itertools import accumulate, chain

import pytest
import torch

from conformance.ranks import process_memory

WARM, PLAIN, ADAM = 900, 100, 500


@pytest.mark.parametrize("late", [None, 1, 2, 3, 4, 5, 6])
def test_memory_that_is_freed_late_is_not_state(monkeypatch, late):
    growths = [WARM, PLAIN, ADAM, PLAIN, ADAM, PLAIN, ADAM]
    if late is not None:  # counted for one optimizer, and freed while the next one is weighed
        growths[late] += 4000
        growths[late + 1 :] = [one - 4000 for one in growths[late + 1 : late + 2]] + growths[late + 2 :]
    readings = chain.from_iterable((end - grown, end) for grown, end in zip(growths, accumulate(growths), strict=True))
    monkeypatch.setattr(process_memory, "_ALLOCATED", int)
    monkeypatch.setattr(process_memory, "_settled", lambda _: next(readings))
    parameters = [torch.ones(2, 3)]
    weighed = process_memory.process_state_bytes(
        lambda copies, cls, **given: cls(copies, **given), parameters, torch.optim.Adam, {"lr": 0.1}
    )
    assert weighed is not None
    assert weighed <= (ADAM - PLAIN) // 4
    if late is None:
        assert weighed == (ADAM - PLAIN) // 4
