"""The command line forks one of its two fork servers from itself: they share the memory of what both import."""

import os
import subprocess
import sys

import psutil
import pytest

from conformance.execution.fork_servers import HASH_SEEDS
from pytest_ddp.pool.launcher import EXIT_SECONDS, ONE_THREAD

RUN = """
import sys, time, torch
from conformance.execution.fork_servers import fork_servers, ranks_from
from pytest_ddp.planning.world import World
with fork_servers() as servers, ranks_from(servers) as ranks:
    outcomes = ranks.run(World(3), "rank_targets:hash_of_a_text", timeout=60)
    print([outcome.body for outcome in outcomes], [server._server.pid for server in ranks.launcher.servers], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def started():
    """Start a program with ranks; give it, what its three ranks answered, and the processes of its servers."""
    programs = []

    def start(**environment):
        with_path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
        program = subprocess.Popen(
            [sys.executable, "-c", RUN], env=with_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        programs.append(program)
        hashes, _, pids = program.stdout.readline().partition("] [")
        return program, hashes, [psutil.Process(int(pid)) for pid in pids.strip(" ]\n").split(",")]

    yield start
    for program in programs:
        program.kill()
        program.communicate()


@pytest.mark.long
def test_a_forked_server_is_as_good_as_an_interpreter_and_ends_with_its_parent(started):
    program, hashes, (first, second) = started(**ONE_THREAD, PYTHONHASHSEED=HASH_SEEDS[0])
    assert first.cmdline() == psutil.Process(program.pid).cmdline() != second.cmdline()
    ranks = first.children()
    assert len(ranks) == 2
    _, the_same, (interpreter, _) = started(PYTHONHASHSEED="0")
    assert the_same == hashes
    assert interpreter.cmdline() != first.cmdline()
    program.kill()
    program.wait()
    gone, left = psutil.wait_procs([first, second, *ranks], EXIT_SECONDS)
    assert not left, gone


@pytest.mark.long
def test_a_forked_server_is_ended_with_its_ranks(started):
    program, _, servers = started(**ONE_THREAD, PYTHONHASHSEED=HASH_SEEDS[0])
    program.communicate()
    assert program.returncode == 0
    assert not any(server.is_running() for server in servers)
