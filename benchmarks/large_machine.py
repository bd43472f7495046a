"""A pytest plugin that lets any number of ranks run on this machine, however slowly."""

from pytest_ddp.planning.plan import Machine

Machine.max_world_size = lambda *_: 10**6
