"""Hypothesis tests: examples are drawn in the controller and run on the ranks."""
