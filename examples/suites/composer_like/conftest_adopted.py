"""The launcher starts this pytest once per rank; tests of another world size are left out."""

import os
import random

import pytest
import torch
import torch.distributed as dist
from pytest_ddp import distributed


def pytest_configure(config):
    config.addinivalue_line("markers", "world_size(number): the ranks that a test needs")


def pytest_collection_modifyitems(config, items):
    for item in items:
        if mark := item.get_closest_marker("world_size"):
            item.add_marker(distributed(world_size=mark.args[0]))


@pytest.fixture(autouse=True)
def seed_all():
    random.seed(17)
    torch.manual_seed(17)


@pytest.fixture(autouse=True, scope="session")
def configure_dist():
    if "RANK" in os.environ and not dist.is_initialized():
        dist.init_process_group("gloo")


@pytest.fixture
def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
