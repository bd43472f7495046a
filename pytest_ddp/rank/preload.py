"""What every rank needs, imported once in the fork server so that no rank pays for it."""

import cloudpickle  # noqa: F401
import torch.distributed
import torch.nn.parallel
import torch.optim  # noqa: F401

import pytest_ddp.observed.recording.install  # noqa: F401
from pytest_ddp.torch_internals import import_compiler

import_compiler()
