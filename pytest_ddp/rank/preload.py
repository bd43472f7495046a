"""What every rank needs, imported once in the fork server so that no rank pays for it."""

import cloudpickle  # noqa: F401
import torch._dynamo  # torch.optim imports it on the first optimizer, which takes seconds
import torch.distributed
import torch.nn.parallel
import torch.optim  # noqa: F401

import pytest_ddp.observed.recording.install  # noqa: F401
