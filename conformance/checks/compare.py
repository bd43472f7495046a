"""Compares the tensors that a rank reported with the expected ones, and says in words where they differ."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from conformance.oracle.tolerance import Limits, difference, equal, float64_limits, scale_of
from conformance.workload.numbers import Tensors, wide

MISSING = "is missing"


class Mismatch(NamedTuple):
    """The first tensor, by name, that is not what it should be."""

    name: str
    words: str


def first_mismatch(observed: Tensors, expected: Tensors, limits: Limits | None = None) -> Mismatch | None:
    """Return the first expected tensor that is absent or differs by more than rounding, in words.

    Args:
        observed: what a rank reported.
        expected: what the oracle computed.
        limits: how far rounding may take each, in absolute terms; without them, as in float64.
    """
    limits = float64_limits(expected) if limits is None else limits
    for name, wanted in expected.items():
        seen = observed.get(name)
        if seen is None:
            return Mismatch(name, MISSING)
        if seen.shape != wanted.shape:
            return Mismatch(name, f"has the shape {list(seen.shape)}, expected {list(wanted.shape)}")
        if not equal(seen, wanted, limits[name]):
            apart, size, where = difference(seen, wanted), scale_of([wanted]), element_apart(seen, wanted)
            share = _share(apart / size if size else math.inf)
            return Mismatch(name, f"is off by {apart:.3g} ({share} its largest element): {where}")
    return None


def mismatches(
    observed: Iterable[Tensors], expected: Tensors, limits: Limits | None = None
) -> Iterator[tuple[int, Mismatch]]:
    """Yield each rank with a tensor that is absent or differs by more than rounding, and the first such tensor."""
    for rank, tensors in enumerate(observed):
        if wrong := first_mismatch(tensors, expected, limits):
            yield rank, wrong


def _share(relative: float) -> str:
    if relative >= 2:  # noqa: PLR2004  "2 times" reads better than "200% of"
        return f"{relative:.0f} times"
    return f"{relative:.0%} of" if relative >= 0.01 else f"{relative:.1e} of"  # noqa: PLR2004  a percent


def element_apart(seen: torch.Tensor, wanted: torch.Tensor) -> str:
    """Return where two tensors of one shape differ most, with both values."""
    flat = (wide(seen) - wide(wanted)).abs().flatten()
    at = int(torch.where(flat.isnan(), torch.inf, flat).argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(at), seen.shape)] if seen.dim() else []
    place = f"element {index} " if index else ""
    one, other = seen.flatten()[at].item(), wanted.flatten()[at].item()
    digits = ".6g" if f"{one:.6g}" != f"{other:.6g}" else ".17g"
    return f"{place}seen {one:{digits}}, expected {other:{digits}}"
