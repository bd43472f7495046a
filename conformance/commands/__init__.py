"""What `pytest-ddp-grade` can do: one module for each command, with its options and its function.

A module has `add(commands)`, which adds its parser, whose default `run` is the function that carries it out.
"""
