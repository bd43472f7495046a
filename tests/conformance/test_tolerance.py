"""Rounding counts as equal, the smallest known mistake does not; no NaN and no large neighbour hides anything."""

import pytest
import torch

from conformance.oracle.tolerance import difference, equal, scale_of

ONES = torch.ones(4, dtype=torch.float64)


def test_rounding_is_negligible_and_a_trip_through_float32_is_not():
    values = torch.linspace(0.1, 1.0, 50, dtype=torch.float64)
    assert equal(values * (1 + 1e-14), values)
    assert not equal(values.float().double(), values)


def test_the_scale_is_the_tensors_largest_element():
    assert difference(ONES + 0.5, ONES).relative == pytest.approx(0.5)
    assert difference(10 * ONES + 0.5, 10 * ONES).relative == pytest.approx(0.05)


def test_a_tensor_that_should_vanish_is_measured_by_its_fellows():
    nothing = torch.zeros(4, dtype=torch.float64)
    assert not equal(nothing + 1e-15, nothing)
    assert equal(nothing + 1e-15, nothing, fellows=scale_of([ONES]))
    assert not equal(nothing + 1e-9, nothing, fellows=scale_of([ONES]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_never_equal(bad):
    assert not equal(ONES * bad, ONES)


def test_shapes_must_agree_and_empty_tensors_do():
    assert not equal(ONES, torch.ones(5, dtype=torch.float64))
    assert equal(torch.ones(0), torch.ones(0))
