"""What the variables of each launcher say of a process."""

import pytest

from pytest_ddp.errors import UsageError
from pytest_ddp.hosts.job_process import JobProcess, first_node, job_process, without_job
from pytest_ddp.protocol.targets import NO_JOB

STORE = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
TORCHRUN = {
    **STORE,
    "RANK": "4",
    "WORLD_SIZE": "7",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "3",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_ERROR_FILE": "/tmp/error.json",
}
SRUN = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "5",
    "SLURM_PROCID": "3",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_NODEID": "1",
    "SLURMD_NODENAME": "gpu02",
    "SLURM_STEP_NODELIST": "gpu[01-02]",
}
ADDRESS = ("10.0.0.1", 29500)


def test_the_first_process_of_a_node_under_torchrun_hosts_all_its_ranks():
    assert job_process(TORCHRUN, "b") == JobProcess(
        4, 7, "1 (b)", (4, 5, 6), ADDRESS, has_store=True, attempt=2, name="none", error_file="/tmp/error.json"
    )


def test_the_other_processes_of_a_node_under_torchrun_host_none():
    found = job_process({**TORCHRUN, "RANK": "5", "LOCAL_RANK": "1"}, "b")
    assert found is not None
    assert (found.rank, found.ranks) == (5, ())


@pytest.mark.parametrize(
    ("variables", "process"),
    [
        ({**STORE, "RANK": "1", "WORLD_SIZE": "2"}, JobProcess(1, 2, "b", (1,), ADDRESS)),
        ({**STORE, "RANK": "1", "WORLD_SIZE": "2", "NODE_RANK": "1"}, JobProcess(1, 2, "1 (b)", (1,), ADDRESS)),
        ({**SRUN, **STORE}, JobProcess(3, 8, "1 (gpu02)", (3,), ADDRESS, name="1234.5")),
        (SRUN, JobProcess(3, 8, "1 (gpu02)", (3,), ("gpu01", 38259), name="1234.5")),
        (
            {**STORE, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
            JobProcess(0, 4, "b", (0,), ADDRESS),
        ),
        ({**STORE, "PMI_RANK": "2", "PMI_SIZE": "4"}, JobProcess(2, 4, "b", (2,), ADDRESS)),
    ],
    ids=["env", "env of several nodes", "srun with a master", "srun", "Open MPI", "MPICH"],
)
def test_other_launchers_start_one_host_for_each_rank(variables, process):
    assert job_process(variables, "b") == process


@pytest.mark.parametrize(
    "variables",
    [
        {},
        STORE,
        {**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"},
        {**TORCHRUN, NO_JOB: "1"},
        {**TORCHRUN, "PYTEST_XDIST_WORKER": "gw0"},
        {name: value for name, value in SRUN.items() if name != "SLURM_STEP_ID"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
    ],
    ids=["nothing", "store only", "one rank", "below a job", "xdist", "a batch script of Slurm", "one rank of MPI"],
)
def test_a_process_that_belongs_to_no_job_of_several_ranks(variables):
    assert job_process(variables, "b") is None


def test_mpi_does_not_say_where_rank_0_is():
    with pytest.raises(UsageError, match=r"rank 1 of 2 of a job, but MASTER_ADDR and MASTER_PORT are not set: set"):
        job_process({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "b")


def test_what_names_the_process_is_taken_out_of_its_variables():
    assert without_job({**TORCHRUN, "PATH": "/bin"}) == {"PATH": "/bin", NO_JOB: "1"}


@pytest.mark.parametrize(
    ("names", "first"),
    [("a", "a"), ("a,b", "a"), ("a[01-03,7],b", "a01"), ("gpu[7,9]", "gpu7"), ("rack[1-2]-ib", "rack1-ib")],
)
def test_the_first_node_of_a_list_of_slurm(names, first):
    assert first_node(names) == first
