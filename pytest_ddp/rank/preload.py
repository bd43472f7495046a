"""Imports what a rank needs; the fork server does so once for all ranks."""

import cloudpickle  # noqa: F401

import pytest_ddp.observed.recording.process_group  # noqa: F401
from pytest_ddp.torch_internals import import_compiler

import_compiler()
