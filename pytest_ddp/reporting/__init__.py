"""The reports of N ranks, merged into the one report that pytest shows."""
