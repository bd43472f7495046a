"""Bugs planted in FSDP (`tests/conformance/parts/fsdp.py`)."""

from bugs.fsdp import memory, parameters, training

BUGS = [*memory.BUGS, *parameters.BUGS, *training.BUGS]
