"""What every rank will want, imported once in the fork server so that no rank pays for it."""

import importlib

import cloudpickle  # noqa: F401
import torch._dynamo  # torch.optim imports it on the first optimizer, which takes seconds
import torch.distributed
import torch.nn.parallel
import torch.optim  # noqa: F401
from _pytest.config import default_plugins

import pytest_ddp.observed.install  # noqa: F401

for plugin in default_plugins:
    importlib.import_module(f"_pytest.{plugin}")
