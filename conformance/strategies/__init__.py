"""Hypothesis strategies that draw scenarios: the smallest first, one feature at a time on top of plain training."""

from conformance.strategies.building_blocks import Bounds

__all__ = ["Bounds"]
