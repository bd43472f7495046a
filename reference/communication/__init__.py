"""Processes and process groups: start ranks, show an all-reduce, measure it, model its cost."""
