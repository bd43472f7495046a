"""The overhead model: its equation equals a simulation of its assumptions, and no bucket size beats its optimum."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import adapters
from reference.communication.overhead import ddp_overhead, fit, optimal_bucket_size

BYTES, BANDWIDTHS, OVERHEADS = st.floats(1e3, 1e10), st.floats(1e6, 1e12), st.floats(1e-7, 1e-1)


def simulated_overhead(s: float, w: float, o: float, n_b: int) -> float:
    """Simulate buckets: each is sent when it is computed and the one before it has been sent."""
    compute = s / n_b / w
    computed = sent = 0.0
    for _ in range(n_b):
        computed += compute
        sent = max(computed, sent) + s / n_b / w + o
    return sent - computed


@given(BYTES, BANDWIDTHS, OVERHEADS, st.integers(1, 50))
def test_the_equation_equals_a_simulation(s: float, w: float, o: float, n_b: int) -> None:
    backward = s / w
    assert ddp_overhead(s, w, o, n_b) == pytest.approx(simulated_overhead(s, w, o, n_b), rel=1e-9, abs=1e-9 * backward)


@given(BYTES, BANDWIDTHS, OVERHEADS, st.floats(0.01, 100))
def test_no_bucket_size_beats_the_optimum(s: float, w: float, o: float, factor: float) -> None:
    best = s / optimal_bucket_size(s, w, o)
    least = ddp_overhead(s, w, o, best)
    assert least <= ddp_overhead(s, w, o, best * factor) * (1 + 1e-12)
    assert least == pytest.approx(2 * math.sqrt(s * o / w))


def test_the_optimum_in_numbers() -> None:
    assert optimal_bucket_size(s=100e6, w=1e9, o=1e-3) == pytest.approx(10e6)
    assert ddp_overhead(s=100e6, w=1e9, o=1e-3, n_b=10) == pytest.approx(0.02)


def test_the_adapters_are_the_model() -> None:
    assert adapters.ddp_overhead(100e6, 1e9, 1e-3, 5) == ddp_overhead(100e6, 1e9, 1e-3, 5)
    assert adapters.optimal_bucket_size(100e6, 1e9, 1e-3) == optimal_bucket_size(100e6, 1e9, 1e-3)


@pytest.mark.parametrize(("s", "w", "o"), [(-1, 1, 1), (1, 0, 1), (1, -1, 1), (1, 1, -1), (math.nan, 1, 1)])
def test_impossible_arguments_are_refused(s: float, w: float, o: float) -> None:
    with pytest.raises(ValueError, match=f"s = {s}, w = {w}, o = {o}: s and o must be 0 or more"):
        ddp_overhead(s, w, o, 1)
    with pytest.raises(ValueError, match="w must be positive"):
        optimal_bucket_size(s, w, o)


@pytest.mark.parametrize("n_b", [0, -2])
def test_there_must_be_buckets(n_b: int) -> None:
    with pytest.raises(ValueError, match=f"n_b = {n_b}: the number of buckets must be positive"):
        ddp_overhead(1, 1, 1, n_b)


@given(BANDWIDTHS, OVERHEADS)
def test_a_fit_finds_the_bandwidth_and_overhead_that_made_the_times(w: float, o: float) -> None:
    sizes = [w * o * factor for factor in (0.01, 0.1, 1, 10, 100)]
    assert fit(sizes, [size / w + o for size in sizes]) == pytest.approx((w, o), rel=1e-6)


def test_a_fit_stays_near_when_times_are_a_tenth_off() -> None:
    sizes = [1e3, 1e4, 1e5, 1e6, 1e7, 1e8]
    noise = [1.1, 0.9, 1.1, 0.9, 1.1, 0.9]
    w, o = fit(sizes, [(size / 1e9 + 1e-4) * off for size, off in zip(sizes, noise, strict=True)])
    assert w == pytest.approx(1e9, rel=0.12)
    assert o == pytest.approx(1e-4, rel=0.12)


def test_an_overhead_below_zero_becomes_zero() -> None:
    w, o = fit([1e6, 2e6], [0.9e-3, 2.1e-3])
    assert o == 0
    assert w == pytest.approx(1e9, rel=0.2)


@pytest.mark.parametrize(
    ("sizes", "seconds", "message"),
    [
        ([1e6, 1e6], [1, 1], "all-reduces of 1 different sizes: bandwidth and overhead need at least 2"),
        ([], [], "all-reduces of 0 different sizes"),
        ([1, 2], [1, 0], "an all-reduce in 0 s: times must be positive"),
        ([1, 2, 3], [3, 2, 1], "larger all-reduces took no longer: measure larger sizes, and more repetitions"),
    ],
)
def test_measurements_that_cannot_be_fitted_are_refused(sizes: list[float], seconds: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(sizes, seconds)
