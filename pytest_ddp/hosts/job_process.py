"""What a launcher such as torchrun, srun or mpirun says of the process that it started, in its variables. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_ddp.errors import UsageError
from pytest_ddp.protocol.targets import NO_JOB

_LAUNCHER = ("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
_SIZES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE")
_ELASTIC = "TORCHELASTIC_"
_MPI = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
_FIRST_PORT, _PORTS = 20000, 20000
_MASTER = (
    "this process is rank {rank} of {size} of a job, but MASTER_ADDR and MASTER_PORT are not set: set them, for all "
    "processes alike, to the address of the node of rank 0 and to a free port there"
)


@dataclass(frozen=True)
class JobProcess:
    """One process of a job.

    Attributes:
        rank: its number.
        size: the number of processes of the job.
        node: the name of its node, so far as the launcher says it.
        ranks: the ranks that it hosts: its own one; under torchrun, the first process of a node hosts all ranks there.
        master: host and port of the job's store.
        has_store: whether the launcher keeps that store, so that rank 0 need not.
        attempt: how often the launcher has started the job again.
        name: the name of the job, which tells it from others that had the same store.
        error_file: where torchrun looks for the reason why this process failed; empty if it does not.
    """

    rank: int
    size: int
    node: str
    ranks: tuple[int, ...]
    master: tuple[str, int]
    has_store: bool = False
    attempt: int = 0
    name: str = ""
    error_file: str = ""


def job_process(variables: Mapping[str, str], hostname: str) -> JobProcess | None:
    """Return the process that these variables describe; None if it belongs to no job of several processes.

    Raises:
        UsageError: the launcher does not say where rank 0 is.
    """
    if NO_JOB in variables or "PYTEST_XDIST_WORKER" in variables:
        return None
    found: JobProcess | None
    if {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= variables.keys():
        found = _torchrun(variables, hostname)
    elif {"SLURM_STEP_ID", "SLURM_PROCID"} <= variables.keys():  # not in a batch script, which is one process
        found = _slurm(variables, hostname)
    else:
        found = _mpi(variables, hostname)
    return found if found is not None and found.size > 1 else None


def without_job(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that say which process of a job this is, and marked as joined."""
    gone = {*_LAUNCHER, *_SIZES}
    kept = {name: value for name, value in variables.items() if name not in gone and not name.startswith(_ELASTIC)}
    return {**kept, NO_JOB: "1"}


def _torchrun(variables: Mapping[str, str], hostname: str) -> JobProcess:
    rank, size = int(variables["RANK"]), int(variables["WORLD_SIZE"])
    local, local_size = int(variables.get("LOCAL_RANK", 0)), int(variables.get("LOCAL_WORLD_SIZE", 1))
    group = variables.get("GROUP_RANK", variables.get("NODE_RANK"))
    ranks: tuple[int, ...] = (rank,)
    if "TORCHELASTIC_RUN_ID" in variables:  # it numbers the ranks of a node one after the other
        ranks = tuple(range(rank, rank + local_size)) if local == 0 else ()
    return JobProcess(
        rank,
        size,
        hostname if group is None else f"{group} ({hostname})",
        ranks,
        (variables["MASTER_ADDR"], int(variables["MASTER_PORT"])),
        has_store=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=int(variables.get("TORCHELASTIC_RESTART_COUNT", 0)),
        name=variables.get("TORCHELASTIC_RUN_ID", ""),
        error_file=variables.get("TORCHELASTIC_ERROR_FILE", ""),
    )


def _slurm(variables: Mapping[str, str], hostname: str) -> JobProcess:
    rank = int(variables["SLURM_PROCID"])
    size = int(variables.get("SLURM_STEP_NUM_TASKS", variables.get("SLURM_NTASKS", 1)))
    job, step = variables.get("SLURM_JOB_ID", "0"), variables["SLURM_STEP_ID"]
    nodes = variables.get("SLURM_STEP_NODELIST", variables.get("SLURM_NODELIST", hostname))
    address = variables.get("MASTER_ADDR", first_node(nodes))
    port = int(variables.get("MASTER_PORT", _FIRST_PORT + (int(job) * 31 + int(step)) % _PORTS))
    node = f"{variables.get('SLURM_NODEID', 0)} ({variables.get('SLURMD_NODENAME', hostname)})"
    return JobProcess(rank, size, node, (rank,), (address, port), name=f"{job}.{step}")


def _mpi(variables: Mapping[str, str], hostname: str) -> JobProcess | None:
    for rank_name, size_name in _MPI:
        if {rank_name, size_name} <= variables.keys():
            rank, size = int(variables[rank_name]), int(variables[size_name])
            if size > 1 and not {"MASTER_ADDR", "MASTER_PORT"} <= variables.keys():
                raise UsageError(_MASTER.format(rank=rank, size=size))
            master = variables.get("MASTER_ADDR", ""), int(variables.get("MASTER_PORT", 0))
            return JobProcess(rank, size, hostname, (rank,), master)
    return None


def first_node(names: str) -> str:
    """Return the first node of a list as Slurm writes it: "a[01-03,7],b" -> "a01"."""
    found = re.match(r"([^\[,]*)(?:\[(\d+)[^\]]*\]([^,]*))?", names)
    return "".join(part or "" for part in found.groups()) if found else names
