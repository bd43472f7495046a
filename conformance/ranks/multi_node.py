"""Ranks that seem to be on two machines: there, a rank's place on its machine is not its rank."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch.distributed as dist

from conformance.scenarios.drawn import Drawn


@contextmanager
def on_two_machines(drawn: Drawn) -> Iterator[None]:
    """Set `LOCAL_RANK` and `LOCAL_WORLD_SIZE` during the block as torchrun would, if what is drawn asks for it.

    What a submission has read before, as when it was imported by an earlier task, stays as it was.
    """
    if not drawn.two_machines:
        yield
        return
    local = math.ceil(dist.get_world_size() / 2)  # the second machine has as many, or one fewer
    places = {"LOCAL_RANK": str(dist.get_rank() % local), "LOCAL_WORLD_SIZE": str(local)}
    with mock.patch.dict(os.environ, places):
        yield
