"""Holds data-parallel wrappers and sharded optimizers against single-process training, and grades submissions.

`pytest-ddp-grade PATH` is the command; `pytest --pyargs conformance --ddp-submission=PATH` the test suite.
"""
