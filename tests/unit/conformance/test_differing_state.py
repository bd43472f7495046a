"""What loading has changed is told by place; what cannot be compared is not held against anybody."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from conformance.workload.schedule import _differing


class Owner:
    rank = 0


NAN = float("nan")
SAVED = [1.5, NAN, "text", np.arange(3), torch.arange(3), torch.tensor([NAN, 1]), Owner(), (torch.ones(2), [Owner()])]


@pytest.mark.parametrize("value", SAVED)
def test_a_copy_is_the_same(value):
    assert list(_differing({"kept": value}, deepcopy({"kept": value}))) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [(1.5, 2.5), (np.arange(3), np.zeros(3)), (torch.arange(3), torch.zeros(3)), (1, None), ([1], [1, 2])],
)
def test_a_change_is_told_by_its_place(before, after):
    assert list(_differing({"state": {0: before}}, {"state": {0: after}})) == ["['state'][0]"]
    assert list(_differing({"gone": before}, {})) == ["['gone']"]
