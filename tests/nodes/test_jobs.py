"""pytest in a job: rank 0 reports for all processes, and all of them end alike.

Most jobs here are processes with the variables of a launcher, which say that they are on two nodes; two agents of
torchrun start one of them. So these tests need no namespaces.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from pytest_ddp.hosts.job_process import without_job
from pytest_ddp.protocol.targets import NO_JOB

pytestmark = pytest.mark.nodes
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:asyncio")
SUITE = """
import os, pathlib
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings, strategies as st
from pytest_ddp import distributed

def total():
    ones = torch.ones(1)
    dist.all_reduce(ones)
    return ones.item()

@distributed
@pytest.fixture(scope="module")
def made(ddp):
    return total()

@distributed(world_size=3)
def test_of_all_ranks(ddp, made):
    assert made == total() == 3
    assert [ddp.node_rank, ddp.local_rank, ddp.local_world_size] == [[0, 0, 1], [1, 0, 2], [1, 1, 2]][ddp.rank]
    names = ["GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK"]
    values = [ddp.node_rank, ddp.local_rank, ddp.local_world_size, ddp.rank]
    assert [os.environ[name] for name in names] == list(map(str, values))

@distributed(world_size=2, nodes=2)
def test_of_two_nodes(ddp):
    assert total() == 2
    assert ddp.node_rank == ddp.rank

@distributed(world_size=3, observe=True)
def test_observed(ddp):
    total()
    assert len(ddp.collectives) == 1

@settings(max_examples=5, database=None)
@given(number=st.integers())
@distributed(world_size=3)
def test_given(ddp, number):
    numbers = [None] * 3
    dist.all_gather_object(numbers, number)
    assert numbers == [number] * 3

def test_calls(ddp_ranks):
    assert ddp_ranks(world_size=3).run(total) == [3, 3, 3]
    assert "RANK" not in os.environ

@distributed(world_size=4)
def test_too_large(ddp):
    pass

@distributed(world_size=3, nodes=3)
def test_of_too_many_nodes(ddp):
    pass
"""
FAULTS = """
import os, pathlib, threading
import torch.distributed as dist
from pytest_ddp import distributed

@distributed(world_size=3)
def test_fails(ddp):
    print("seen by", ddp.rank)
    assert ddp.rank < 2

@distributed(world_size=3)
def test_dies(ddp):
    if ddp.rank == 2:
        os._exit(3)
    dist.barrier()

@distributed(world_size=3)
def test_waits_for_ever(ddp):
    if ddp.rank == 2:
        dist.barrier()

@distributed(world_size=3, timeout=2)
def test_hangs(ddp):
    if ddp.rank == 2:
        threading.Event().wait()

@distributed(world_size=3)
def test_goes_on(ddp):
    dist.barrier()
"""
HANGS = """
import os, pathlib, threading
from pytest_ddp import distributed

@distributed(world_size=3, timeout=200)
def test_hangs(ddp):
    pathlib.Path(__file__).with_name(f"hangs{ddp.rank}").touch()
    threading.Event().wait()

@distributed(world_size=2)
def test_needs_node_1(ddp):
    pass

@distributed(world_size=1)
def test_needs_node_0(ddp):
    pass
"""


@dataclass
class Job:
    """The processes of a job of three ranks: rank 0 on node 0, ranks 1 and 2 on node 1."""

    folder: Path
    args: Sequence[str] = ()
    processes: list["subprocess.Popen[str]"] = field(default_factory=list)

    def start(self, variables: Mapping[str, str] | None = None, ranks: Sequence[int] = (0, 1, 2)) -> None:
        store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "3"}
        for rank in ranks:
            ours = {**store, "RANK": str(rank), "NODE_RANK": str(min(rank, 1)), **(variables or {})}
            ours["TORCHELASTIC_ERROR_FILE"] = str(self.error_file(rank))
            environment = {**outside(), **ours}
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, *PYTEST, *self.args],
                    cwd=self.folder,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )

    def error_file(self, rank: int) -> Path:
        return self.folder / f"error{rank}.json"

    def error(self, rank: int) -> str:
        message: str = json.loads(self.error_file(rank).read_text())["message"]["message"]
        return message

    def end(self) -> tuple[list[int], list[str]]:
        """Wait for all processes; return their exit codes and outputs."""
        outputs = [process.communicate(timeout=200)[0] for process in self.processes]
        return [process.returncode for process in self.processes], outputs


@pytest.fixture
def make_job(pytester) -> Iterator[type[Job]]:
    made: list[Job] = []

    def make(source: str, *args: str) -> Job:
        pytester.makepyfile(test_suite=source)
        made.append(Job(pytester.path, args))
        return made[-1]

    yield make
    for process in (process for job in made for process in job.processes):
        process.kill()
        process.communicate()


def outside() -> dict[str, str]:
    """Return the variables of this process without those of a job or of an xdist worker that it may be."""
    variables = without_job(os.environ)
    return {name: value for name, value in variables.items() if name != NO_JOB and "PYTEST_XDIST" not in name}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def wait_for(paths: Sequence[Path]) -> None:
    end = time.monotonic() + 200
    while not all(path.exists() for path in paths):
        assert time.monotonic() < end
        time.sleep(0.05)


@contextmanager
def hanging(job: Job) -> Iterator[list[psutil.Process]]:
    """Give the job and all processes below it while its ranks hang; none of them may be left afterwards."""
    job.start()
    wait_for([job.folder / f"hangs{rank}" for rank in range(3)])
    roots = [psutil.Process(process.pid) for process in job.processes]
    everything = [*roots, *(below for root in roots for below in root.children(recursive=True))]
    yield roots
    job.end()
    assert not psutil.wait_procs(everything, 20)[1]


def test_all_kinds_of_tests_run_on_several_nodes(make_job):
    job = make_job(SUITE, "-rs")
    job.start()
    codes, (report, *others) = job.end()
    assert codes == [0, 0, 0], report
    assert others == ["", ""]
    assert "5 passed, 2 skipped" in report
    assert "job of 3 ranks on 2 nodes (0 (" in report
    assert "4 ranks are needed; this job has 3" in report
    assert "3 nodes are needed; this job has 2" in report
    assert not job.error_file(0).exists()


def test_failures_on_other_nodes_are_reported_once(make_job):
    job = make_job(FAULTS)
    job.start()
    codes, (report, *others) = job.end()
    assert codes == [1, 1, 1], report
    assert others == ["", ""]
    assert "4 failed, 1 passed" in report
    assert "rank 2 of 3 (gloo, cpu) raised AssertionError: assert 2 < 2" in report
    assert "seen by 2" in report
    assert "rank 2 of 3 (gloo, cpu) exited with code 3" in report
    assert "it waits in barrier #1, which ranks 0, 1 never entered: each has returned" in report
    assert "in test_hangs" in report
    assert job.error(0).startswith("test_suite.py::test_fails\n")
    assert job.error(2).endswith("it ended with exit code 1: test_suite.py::test_fails")


def test_a_node_that_is_lost_costs_the_tests_on_it(make_job):
    job = make_job(HANGS)
    with hanging(job) as roots:
        for host in roots[1:]:
            host.kill()
        codes, (report, *_) = job.end()
    assert codes[0] == 1
    assert "1 failed, 1 passed, 1 error" in report, report
    assert re.search(r"rank [12] of 3 .* was on node 1 \(\S+\), which was lost: its rank host has ended", report)
    assert re.search(r"^node 1 \(\S+\) was lost: its rank host has ended", report, re.MULTILINE)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_rank_0(make_job, number):
    job = make_job(HANGS)
    with hanging(job) as roots:
        roots[0].send_signal(number)
        codes, (report, *others) = job.end()
        assert all(codes)
        assert others == ["", ""]
        if number == signal.SIGTERM:
            assert "interrupted: test_suite.py::test_hangs" in report
            assert "rank 2" in report


@pytest.mark.parametrize(
    ("args", "variables", "sentence"),
    [
        (["-n", "2"], {}, "pytest-xdist cannot share the ranks of a job among its workers: leave out -n"),
        ([], {"TORCHELASTIC_RESTART_COUNT": "1"}, "torchrun has started this job again (attempt 2). pytest-ddp runs"),
    ],
)
def test_what_a_job_cannot_do_is_refused_by_rank_0_alone(make_job, args, variables, sentence):
    job = make_job(SUITE, *args)
    job.start(variables, ranks=(0, 2))
    codes, (report, other) = job.end()
    assert codes == [4, 4]
    assert sentence in report
    assert not other
    assert sentence in job.error(0)


@pytest.mark.long
def test_two_agents_of_torchrun_see_one_result(pytester):
    pytester.makepyfile(test_suite=FAULTS)
    port = str(free_port())
    agents = []
    for node, ranks in ((0, 1), (1, 2)):
        where = ["--nnodes=2", f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}"]
        command = [sys.executable, "-m", "torch.distributed.run", *where, f"--nproc-per-node={ranks}", *PYTEST]
        agents.append(
            subprocess.Popen(
                command, cwd=pytester.path, env=outside(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    first, second = (agent.communicate(timeout=250)[0] for agent in agents)
    assert [agent.returncode for agent in agents] == [1, 1], first
    assert "4 failed, 1 passed" in first
    assert "test_suite.py::test_fails" in first.partition("Root Cause")[2]
    assert "4 failed" not in second
    assert "hosted ranks for rank 0 of the job" in second.partition("Root Cause")[2]
