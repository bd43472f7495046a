"""A pool whose ranks run on two rank hosts of this machine, which stand for two nodes."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

import psutil
import pytest
import rank_targets
from fault_table import FAULTS, Fault

from pytest_ddp.errors import LaunchError
from pytest_ddp.hosts.connection import Refused, connect
from pytest_ddp.hosts.hosts import Hosts
from pytest_ddp.hosts.launcher import HostLauncher, preload
from pytest_ddp.hosts.pool import HostedPool
from pytest_ddp.outcomes.failure import RankFailure, failures, root_cause
from pytest_ddp.outcomes.outcome import Deadlocked, Died, Returned, Stopped, TimedOut
from pytest_ddp.planning.world import World
from pytest_ddp.pool.launcher import ForkLauncher
from pytest_ddp.protocol.targets import PRELOAD

TIMEOUT = 60.0
LONG = 300.0  # seconds; nothing here may need them
HOST = """
import sys
sys.path[:] = {path}
from pytest_ddp.hosts.serving import serve_host
sys.exit(serve_host(("127.0.0.1", {port}), bytes.fromhex({secret!r}), node={node!r}, ranks={ranks}).exit_code)
"""


@contextmanager
def rank_hosts(hosts: Hosts, **nodes: tuple[int, ...]) -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    """Start a host for each node and wait until it has connected; none is left afterwards."""
    started = {}
    try:
        for node, ranks in nodes.items():
            code = HOST.format(path=sys.path, port=hosts.port, secret=hosts.secret.hex(), node=node, ranks=ranks)
            started[node] = subprocess.Popen([sys.executable, "-c", code])
        hosts.wait_for([rank for ranks in nodes.values() for rank in ranks], 60, lambda _: None)
        yield started
    finally:
        hosts.close(0)
        for process in started.values():
            if sys.exc_info()[1] is not None:
                process.kill()
            process.wait(30)


@contextmanager
def two_nodes() -> Iterator[tuple[HostedPool, dict[str, "subprocess.Popen[bytes]"]]]:
    with Hosts.listen("127.0.0.1") as hosts, rank_hosts(hosts, a=(0, 1), b=(2, 3)) as started:
        preload(hosts, PRELOAD, "cpu")
        placement = [hosts.host_of(rank) for rank in range(4)]
        with HostedPool(launcher=HostLauncher(hosts, ForkLauncher(), placement)) as pool:
            yield pool, started


@pytest.fixture(scope="module")
def nodes() -> Iterator[HostedPool]:
    with two_nodes() as (pool, _):
        yield pool


def run(pool: HostedPool, target, size: int = 4, payloads=b"", timeout: float = TIMEOUT):
    return pool.run(World(size), f"{rank_targets.__name__}:{target.__name__}", payloads, timeout=timeout)


def bodies(outcomes) -> list[bytes]:
    assert not failures(outcomes), failures(outcomes)
    return [outcome.body for outcome in outcomes]


def test_ranks_of_two_nodes_form_a_group(nodes):
    assert bodies(run(nodes, rank_targets.all_reduce)) == [b"16"] * 4


def test_ranks_stay_warm(nodes):
    first = bodies(run(nodes, rank_targets.process_id))
    assert bodies(run(nodes, rank_targets.process_id)) == first


def test_output_is_that_of_the_run(nodes):
    expected = [f"out {rank}\nerr {rank}\nraw \\xff bytes\n" for rank in range(4)]
    assert [outcome.output for outcome in run(nodes, rank_targets.prints)] == expected
    assert [outcome.output for outcome in run(nodes, rank_targets.all_reduce)] == [""] * 4


def test_a_rank_that_dies_is_reported_and_replaced(nodes):
    first = bodies(run(nodes, rank_targets.process_id))
    died = run(nodes, rank_targets.one_exits)[1]
    assert isinstance(died, Died)
    assert died.exit_code == 3
    second = bodies(run(nodes, rank_targets.process_id))
    assert (first[0] == second[0], first[1] == second[1]) == (True, False)


def test_a_fatal_signal_is_reported_with_the_stack(nodes):
    died = run(nodes, rank_targets.one_segfaults)[1]
    assert isinstance(died, Died)
    assert died.signal == "SIGSEGV"
    assert "ctypes.string_at" in died.stack or "string_at" in died.stack


def test_a_rank_that_hangs_is_reported_with_its_stack_and_output(nodes):
    outcomes = run(nodes, rank_targets.says_its_id_and_hangs, timeout=1.0)
    assert [type(outcome) for outcome in outcomes] == [TimedOut] * 4
    assert all("says_its_id_and_hangs" in outcome.stack for outcome in outcomes)
    assert all(outcome.output.strip().isdigit() for outcome in outcomes)


def test_a_deadlock_over_two_nodes_is_found_at_once(nodes):
    outcomes = nodes.run(World(4), "deadlock_targets:one_returns", timeout=LONG)
    assert [type(outcome) for outcome in outcomes] == [Deadlocked, Returned, Returned, Returned]
    assert "all_reduce #2" in outcomes[0].waits


def test_observed_operations_on_two_nodes_must_match(apart):
    world = World(2, observe=True, nodes=(0, 1))
    with apart.group(world) as group:
        returned, raised = group.run("mismatch_targets:differ", b"reduction", timeout=TIMEOUT)
        assert isinstance(returned, Returned)
        assert (raised.kind, raised.rank) == ("CollectiveMismatch", 1)
        assert "all ranks must call it with the same reduction" in raised.message
        assert not failures(group.run("rank_targets:echo", timeout=TIMEOUT)), "it is reported once"
        assert not failures(apart.run(world, "rank_targets:all_reduce", timeout=TIMEOUT))


@pytest.fixture(scope="module")
def apart(nodes) -> Iterator[HostedPool]:
    """A pool of which each of the first two ranks is on a node of its own."""
    hosts = nodes.launcher.hosts
    launcher = HostLauncher(hosts, ForkLauncher(), [hosts.host_of(0), hosts.host_of(2)])
    with HostedPool(launcher=launcher, grace=0.2) as pool:
        yield pool


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.target for fault in FAULTS])
def test_the_fault_table_on_two_nodes(apart, fault: Fault):
    outcomes = apart.run(World(2), "fault_targets:misbehave", fault.target.encode(), timeout=fault.timeout)
    assert isinstance(outcomes[1], fault.outcome)
    if fault.outcome is Returned:
        assert fault.words in outcomes[1].output
    else:
        assert fault.words in str(RankFailure(outcomes, World(2))).partition("----")[0]
        assert root_cause(outcomes).rank == 1 or fault.target == "hangs_in_barrier"  # where both ranks are to blame
    assert bodies(run(apart, rank_targets.all_reduce, 2)) == [b"8"] * 2


def test_a_node_that_is_lost_costs_the_runs_on_it_only():
    with two_nodes() as (pool, started):
        assert bodies(run(pool, rank_targets.echo, payloads=b"ok")) == [b"ok"] * 4
        Timer(0.5, started["b"].kill).start()
        outcomes = run(pool, rank_targets.says_its_id_and_hangs, timeout=LONG)
        assert [type(outcome) for outcome in outcomes] == [Stopped, Stopped, Died, Died]
        assert "was on node b, which was lost: its rank host has ended" in str(RankFailure(outcomes, World(4)))
        with pytest.raises(LaunchError, match="node b was lost"):
            run(pool, rank_targets.all_reduce)
        assert bodies(run(pool, rank_targets.all_reduce, 2)) == [b"8"] * 2


def test_nothing_outlives_the_controller():
    with two_nodes() as (pool, started):
        pids = [int(body) for body in bodies(run(pool, rank_targets.process_id))]
        assert all(psutil.pid_exists(pid) for pid in pids)
        for host in pool.launcher.hosts.hosts:
            host.connection.shut()  # as the end of the controller would
        assert [process.wait(30) for process in started.values()] == [1, 1]
        assert not any(psutil.pid_exists(pid) for pid in pids)


def test_hosts_leave_with_the_exit_code_of_the_run():
    with Hosts.listen("127.0.0.1") as hosts, rank_hosts(hosts, a=(0,), b=(1,)) as started:
        hosts.close(5)
        assert [process.wait(30) for process in started.values()] == [5, 5]


def test_who_does_not_know_the_secret_is_let_in_by_nobody():
    with Hosts.listen("127.0.0.1") as hosts:
        with pytest.raises(Refused, match=r"does not know the secret|closed the connection"):
            connect(("127.0.0.1", hosts.port), b"guessed")
        with pytest.raises(LaunchError, match=r"no host for rank 0 within 0.1 s"):
            hosts.wait_for([0], 0.1, lambda _: None)


def test_an_error_of_ours_ends_the_run(monkeypatch):
    with two_nodes() as (pool, _):
        bodies(run(pool, rank_targets.all_reduce))
        monkeypatch.setattr(Hosts, "_put", lambda *_: {}["no such key"])
        try:  # the group that ranks join ahead may meet the error before the run does
            said = failures(run(pool, rank_targets.all_reduce))[0].exit_note
        except LaunchError as error:
            said = str(error)
        monkeypatch.undo()
    assert "was lost: reading what it sent failed with KeyError('no such key')" in said


def test_large_payloads_arrive(nodes):
    large = bytes(8_000_000)
    assert bodies(run(nodes, rank_targets.echo, payloads=large)) == [large] * 4
