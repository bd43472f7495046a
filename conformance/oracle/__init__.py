"""Computes the right results, and how far rounding may take correct code from them."""
