"""Ranks that seem to be on two machines: there, a rank's place on its machine is not its rank."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch.distributed as dist

from conformance.scenarios.case import Case
from conformance.scenarios.scenario import Scenario


@contextmanager
def on_two_machines(task: Scenario | Case) -> Iterator[None]:
    """Set `LOCAL_RANK` and `LOCAL_WORLD_SIZE` during the block as torchrun would, if the task asks for it.

    What a submission has read before, as when it was imported by an earlier task, stays as it was.
    """
    if not task.two_machines:
        yield
        return
    local = math.ceil(dist.get_world_size() / 2)  # the second machine has as many, or one fewer
    places = {"LOCAL_RANK": str(dist.get_rank() % local), "LOCAL_WORLD_SIZE": str(local)}
    with mock.patch.dict(os.environ, places):
        yield
