"""`--ddp-launcher=ray`: the ranks of this run are on the nodes of a Ray cluster, and pytest runs here."""

import pytest

from pytest_ddp.controller.job import job_key
from pytest_ddp.errors import UsageError
from pytest_ddp.hosts.ray_hosts import RayJob
from pytest_ddp.settings import Settings

_XDIST = "--ddp-launcher=ray: pytest-xdist cannot share the ranks of a run among its workers: leave out -n and --dist"
_JOB = (
    "--ddp-launcher=ray: this pytest runs in a job of torchrun, srun or mpirun, which has ranks: leave out one of them"
)
_CPU = "--ddp-launcher=ray starts ranks on CPUs only: leave out --ddp-device, or use torchrun on nodes with GPUs"


def plan_ranks(config: pytest.Config, settings: Settings) -> None:
    """Note how many ranks the nodes of the cluster have; do not connect to it yet.

    Raises:
        pytest.UsageError: these options do not go together.
    """
    if config.getoption("numprocesses", None) or config.getoption("tx", None):
        raise pytest.UsageError(_XDIST)
    if job_key in config.stash:
        raise pytest.UsageError(_JOB)
    if settings.device == "cuda":
        raise pytest.UsageError(_CPU)
    config.stash[job_key] = job = RayJob(settings.ray_ranks or (max(settings.world_size),), settings.ray_address)
    config.add_cleanup(job.close)


def reserve(config: pytest.Config) -> None:
    """Connect to the cluster, and reserve its ranks; raise pytest.UsageError if that is not possible."""
    job = config.stash.get(job_key, None)
    if isinstance(job, RayJob):
        try:
            job.preload()
        except UsageError as error:
            raise pytest.UsageError(str(error)) from None
