"""For every fault of a rank, the report names the fault and the rank, and the next run is not harmed."""

import subprocess
import tempfile

import psutil
import pytest
import rank_targets
from fault_table import FAULTS, HANG, Fault
from hanging import ended_when, hangs, waits
from survivors import survivors

from pytest_ddp.errors import LaunchError
from pytest_ddp.outcomes.failure import RankFailure, peer_left, root_cause
from pytest_ddp.outcomes.outcome import Died, Raised, Returned, Skipped, Stopped, TimedOut
from pytest_ddp.planning.world import World
from pytest_ddp.pool.pool import RankPool

LONG = 300.0  # seconds; nothing here may need them
_NO_GROUP = r"could not form a process group:\nrank . of 2 \(nope, cpu\) raised AssertionError: Unknown backend"


def run(ranks, target, payload: bytes = b"", timeout: float = 60.0):
    return ranks.run(World(2), f"rank_targets:{target.__name__}", payload, timeout=timeout)


def run_patiently(ranks, target):
    """Run with a grace that is long enough for every rank to answer."""
    with ranks.group(World(2)) as group:
        group.grace = LONG
        return group.run(f"rank_targets:{target.__name__}", timeout=LONG)


def are_stuck(ranks) -> bool:
    """Whether the faulty ranks, and the ranks that wait for them, have come to the point where they stay."""
    return all(hangs(rank) or waits(rank, 2) or rank.is_halted for rank in ranks)


@pytest.fixture(scope="module")
def ranks():
    """A pool for this module, with a short grace."""
    with RankPool(grace=0.2) as pool:
        yield pool


@pytest.fixture(scope="module")
def others(ranks):
    """The fork server's processes that this module did not start."""
    run(ranks, rank_targets.all_reduce)
    return below_fork_server(ranks) - rank_processes(ranks)


@pytest.fixture(autouse=True)
def next_run_passes_and_nothing_survives(ranks, others):
    yield
    assert all(isinstance(outcome, Returned) for outcome in run(ranks, rank_targets.all_reduce))
    assert not survivors(below_fork_server(ranks) - others - rank_processes(ranks))


def rank_processes(ranks) -> set[psutil.Process]:
    return {psutil.Process(process.pid) for process in ranks._processes.values()}


def below_fork_server(ranks) -> set[psutil.Process]:
    server = next(iter(rank_processes(ranks))).parent()
    assert server is not None
    return set(server.children(recursive=True))


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.target for fault in FAULTS])
def test_the_fault_table(ranks, fault: Fault):
    with ended_when(are_stuck):
        outcomes = ranks.run(World(2), "fault_targets:misbehave", fault.target.encode(), timeout=fault.timeout)
    assert isinstance(outcomes[1], fault.outcome)
    if fault.outcome is Returned:
        assert isinstance(outcomes[0], Returned)
        assert fault.words in outcomes[1].output
    else:
        assert fault.words in str(RankFailure(outcomes, World(2))).partition("----")[0]
        assert root_cause(outcomes).rank == 1 or fault.target == "hangs_in_barrier"  # where both ranks are to blame


def test_a_rank_that_sends_without_end_has_a_deadline_too(ranks):
    outcomes = ranks.run(World(2), "fault_targets:misbehave", b"talks_for_ever", timeout=HANG)
    assert isinstance(outcomes[1], TimedOut)


@pytest.mark.parametrize("target", ["hangs", "hangs_in_c"])
def test_a_hang_is_reported_with_all_stacks_and_with_the_rank_that_was_waited_for(ranks, target):
    with ended_when(are_stuck):
        outcomes = ranks.run(World(2), "fault_targets:misbehave", target.encode(), timeout=HANG)
    assert "in misbehave" in outcomes[0].stack
    assert f"in {target}" in outcomes[1].stack
    assert "it waits in all_reduce #2 float32[4], which rank 1 never entered" in str(RankFailure(outcomes))


def test_one_rank_raises_while_the_other_waits(ranks):
    with ended_when(lambda waiting: all(waits(rank, 1) for rank in waiting)):
        outcomes = run(ranks, rank_targets.one_raises)
    root = root_cause(outcomes)
    assert isinstance(root, Raised)
    assert (root.rank, root.kind, root.message) == (1, "ValueError", "rank 1 has had enough")
    assert isinstance(outcomes[0], Stopped)
    assert str(outcomes[0].collectives[-1]) == "all_reduce #1 float32[4]"
    assert "in all_reduce" in outcomes[0].stack
    assert "in one_raises" in outcomes[0].stack
    assert "pytest_ddp" not in outcomes[0].stack


def test_all_ranks_raise(ranks):
    assert [outcome.message for outcome in run_patiently(ranks, rank_targets.all_raise)] == ["everybody", "everybody"]


def test_all_ranks_skip(ranks):
    assert all(isinstance(outcome, Skipped) for outcome in run(ranks, rank_targets.all_skip))


def test_a_rank_that_waited_for_a_rank_that_left_is_not_the_cause(ranks):
    outcomes = run_patiently(ranks, rank_targets.one_exits)
    assert peer_left(outcomes[0])
    assert str(outcomes[1].collectives[-1]) == "all_reduce #1 float32[4]"


@pytest.mark.parametrize("target", [rank_targets.one_segfaults, rank_targets.segfaults_after_the_last_collective])
def test_a_segfault_is_reported_with_its_python_stack(ranks, target):
    root = root_cause(run(ranks, target))
    assert isinstance(root, Died)
    assert (root.rank, root.signal) == (1, "SIGSEGV")
    assert f"in {target.__name__}" in root.stack


def test_different_sizes_kill_a_rank_and_are_named(ranks):
    outcomes = run(ranks, rank_targets.sizes_differ)
    assert isinstance(root_cause(outcomes), Died)
    text = str(RankFailure(outcomes))
    disagree = (
        "the ranks disagree: rank 0 called all_reduce #1 float32[2000], rank 1 called all_reduce #1 float32[3000]; "
    )
    assert text.startswith(f"{disagree}all ranks must call it with the same shape\n  rank ")


def test_collectives_issued_by_cpp_are_recorded_if_torch_has_a_hook(ranks):
    record = run(ranks, rank_targets.trains_with_ddp)[0].collectives
    if not hasattr(__import__("torch").distributed.ProcessGroup, "register_pre_hook"):
        pytest.skip("torch before 2.15 has no hook for collectives that C++ issues")
    assert any(one.op == "all_reduce" for one in record)


def test_an_exception_at_exit_is_kept():
    with RankPool() as pool:
        pool.run(World(2), "fault_targets:misbehave", b"raises_at_exit", timeout=60)
    assert list(pool.exit_output) == [1]
    assert pool.exit_output[1].rstrip().endswith("ValueError: had enough")


def test_a_rank_that_does_not_end_is_killed_and_named(monkeypatch):
    monkeypatch.setattr("pytest_ddp.pool.pool._CLOSE_SECONDS", 0.25)
    with RankPool() as pool:
        pool.run(World(2), "fault_targets:misbehave", b"hangs_at_exit", timeout=60)
    assert pool.exit_output[1].startswith(
        "was killed: after 0.25 s it still ran the teardown of its fixtures or an atexit"
    )


def test_a_host_that_raises_a_long_exception_is_reported():
    with RankPool(host="fault_targets:is_no_host") as pool, pytest.raises(LaunchError) as caught:
        pool.run(World(1), "rank_targets:all_reduce", timeout=60)
    assert str(caught.value).startswith("rank 0 could not start: Traceback (most recent call last):\n")
    assert "characters left out" in str(caught.value)
    assert str(caught.value).endswith("for this reason")


def test_new_ranks_that_cannot_form_a_group_are_not_replaced():
    with RankPool() as own, pytest.raises(LaunchError, match=_NO_GROUP):
        own.run(World(2, backend="nope"), "rank_targets:all_reduce", timeout=60)
    assert own.counts["started"] == 2


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 64 KiB, where temporary files go."""
    mount = ["/bin/mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    tempfile.tempdir = str(tmp_path)
    yield
    tempfile.tempdir = None
    # Lazily, because a rank that was killed may still exist.
    subprocess.run(["/bin/umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.usefixtures("small_disk")
def test_on_a_full_disk_the_cause_and_the_flight_recorder_are_kept():
    with RankPool(grace=0.2) as pool:
        outcomes = pool.run(World(2), "fault_targets:misbehave", b"fills_the_disk", timeout=60)
    root = root_cause(outcomes)
    assert isinstance(root, Raised)
    assert (root.rank, root.message) == (1, "[Errno 28] No space left on device")
    assert [str(one) for one in root.collectives] == ["all_reduce #1 float32[4]"]
