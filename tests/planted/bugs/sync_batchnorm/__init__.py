"""Bugs planted in synchronised batch norm (`tests/conformance/parts/sync_batchnorm.py`)."""

from bugs.sync_batchnorm import conversion, statistics

BUGS = [*conversion.BUGS, *statistics.BUGS]
