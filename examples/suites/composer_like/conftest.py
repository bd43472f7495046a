"""The launcher starts this pytest once per rank; tests of another world size are left out."""

import os
import random

import pytest
import torch
import torch.distributed as dist


def pytest_configure(config):
    config.addinivalue_line("markers", "world_size(number): the ranks that a test needs")


def pytest_collection_modifyitems(config, items):
    here = int(os.environ.get("WORLD_SIZE", "1"))
    for item in list(items):
        mark = item.get_closest_marker("world_size")
        if (mark.args[0] if mark else 1) != here:
            items.remove(item)


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
