"""Rounding counts as equal, the smallest known mistake does not; no NaN and no large neighbour hides anything."""

import pytest
import torch

from conformance.checks.compare import first_mismatch
from conformance.oracle.tolerance import equal, float64_limits

ONES = torch.ones(4, dtype=torch.float64)


def near(observed, expected, *fellows):
    """Return whether rounding explains the difference of two tensors that stand beside these others."""
    limits = float64_limits(dict(enumerate([expected, *fellows])))
    return equal(observed, expected, limits[0])


def test_rounding_is_negligible_and_a_trip_through_float32_is_not():
    values = torch.linspace(0.1, 1.0, 50, dtype=torch.float64)
    assert near(values * (1 + 1e-14), values)
    assert not near(values.float().double(), values)


def test_the_scale_is_the_tensors_largest_element():
    for size, share in ((1, "50% of"), (10, "5% of")):
        found = first_mismatch({"w": size * ONES + 0.5}, {"w": size * ONES})
        assert f"is off by 0.5 ({share} its largest element)" in found.words


def test_a_tensor_that_should_vanish_is_measured_by_its_fellows():
    nothing = torch.zeros(4, dtype=torch.float64)
    assert not near(nothing + 1e-15, nothing)
    assert near(nothing + 1e-15, nothing, ONES)
    assert not near(nothing + 1e-9, nothing, ONES)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_never_equal(bad):
    assert not near(ONES * bad, ONES)


def test_shapes_must_agree_and_empty_tensors_do():
    assert not near(ONES, torch.ones(5, dtype=torch.float64))
    assert near(torch.ones(0), torch.ones(0))
