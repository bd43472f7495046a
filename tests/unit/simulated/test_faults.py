"""Faults on simulated ranks: each does what it says, at its place, and plans shrink to what matters."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, find, given, settings

from pytest_ddp.simulated import PeerLost, file_operations_of, operations_of, run_job, simulate
from pytest_ddp.simulated.faults import Corrupt, Crash, Delay, Partition, RankKilled, Rejoin
from pytest_ddp.strategies import plans

QUICK = settings(max_examples=100, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def add_up():
    """Four times the sum of all ranks."""
    total = torch.ones(2)
    for _ in range(4):
        dist.all_reduce(total)
    return total.tolist()


def test_a_crash_ends_the_rank_and_the_others_lose_it():
    run = simulate(add_up, 4, faults=[Crash(rank=2, at="all_reduce#3")])
    assert str(run.errors[2]) == "rank 2 was killed at all_reduce#3"
    assert isinstance(run.errors[2], RankKilled)
    assert all(isinstance(run.errors[rank], PeerLost) for rank in (0, 1, 3))
    assert run.problem is None


def test_a_killed_rank_does_nothing_more():
    def clean_up():
        try:
            add_up()
        finally:
            dist.barrier()

    run = simulate(clean_up, 2, faults=[Crash(rank=0, at="all_reduce#1")])
    assert str(run.errors[0]) == "rank 0 is dead"
    assert not [event for event in run.events if event.rank == 0 and event.kind == "launched"]


def test_nothing_can_catch_a_crash_but_a_base_exception():
    def catch():
        try:
            add_up()
        except Exception:  # noqa: BLE001  what user code has
            return "went on"

    run = simulate(catch, 2, faults=[Crash(rank=1, at="all_reduce#2")])
    assert (run.results[0], type(run.errors[1])) == ("went on", RankKilled)


def test_a_delay_lets_the_others_go_first():
    def order():
        order_of_launches.append(dist.get_rank())
        dist.all_reduce(torch.ones(1))
        return add_up()

    order_of_launches = []
    run = simulate(order, 3, faults=[Delay(rank=0, at="all_reduce#1", turns=2)])
    assert run.results == simulate(order, 3).results
    launched = [event.rank for event in run.events if event.kind == "launched"]
    assert launched[:3] == [1, 2, 0]


def test_a_partition_fails_where_operations_cross_it():
    run = simulate(add_up, 4, faults=[Partition(((0, 1), (2, 3)), at="all_reduce#2")])
    assert all(isinstance(run.errors[rank], PeerLost) for rank in range(4))
    assert str(run.errors[3]).endswith("the network between rank 3 and ranks 0, 1 is down")


def test_inside_one_side_of_a_partition_all_is_well():
    def halves():
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        number = torch.ones(1)
        for _ in range(2):
            dist.all_reduce(number, group=groups[dist.get_rank() // 2])
        return number.item()

    assert simulate(halves, 4, faults=[Partition(((0, 1), (2, 3)), at="all_reduce#1")]).results == [4.0] * 4


def test_a_partition_heals():
    def retry():
        for _ in range(3):
            try:
                dist.all_reduce(number := torch.ones(1))
            except RuntimeError:
                continue
            return number.item()
        return None

    faults = [Partition(((0,), (1,)), at="all_reduce#1", until="all_reduce#3")]
    run = simulate(retry, 2, faults=faults)
    assert run.results == [2.0, 2.0]


def test_a_corrupt_bit_is_on_one_rank_only():
    run = simulate(add_up, 4, faults=[Corrupt(rank=1, at="all_reduce#4", bit=31)])
    assert run.results == [[256.0, 256.0], [-256.0, 256.0], [256.0, 256.0], [256.0, 256.0]]


@pytest.mark.parametrize(
    ("rejoins", "results"), [([], [[81.0, 81.0]] * 3), ([Rejoin(2)], [[256.0, 256.0]] * 4)], ids=["gone", "rejoins"]
)
def test_a_job_starts_again_with_the_ranks_that_it_has(rejoins, results):
    job = run_job(add_up, 4, faults=[Crash(rank=2, at="all_reduce#3"), *rejoins])
    assert (len(job.starts), job.results) == (2, results)


def test_a_job_that_fails_by_itself_does_not_start_again():
    def fail():
        raise ValueError("a bug")

    job = run_job(fail, 2, faults=[Crash(rank=0, at="all_reduce#1")])
    assert len(job.starts) == 1
    with pytest.raises(ValueError, match="a bug"):
        job.raise_problem()


def write_twice(folder: Path) -> None:
    if dist.get_rank() == 1:
        with (folder / "text").open("wb") as file:
            file.write(b"abcd")
            file.write(b"efgh")
        (folder / "text").replace(folder / "new")
    dist.barrier()


def test_operations_on_files_have_places(tmp_path):
    places = file_operations_of(write_twice, 2, tmp_path)
    assert places == [(1, "open#1"), (1, "write#2"), (1, "write#3"), (1, "replace#4")]


@pytest.mark.parametrize(
    ("at", "left"),
    [
        ("open#1", {}),
        ("write#2", {"text": b"ab"}),
        ("write#3", {"text": b"abcdef"}),
        ("replace#4", {"text": b"abcdefgh"}),
        ("barrier#1", {"new": b"abcdefgh"}),
    ],
)
def test_a_crash_leaves_what_was_written_before(tmp_path, at, left):
    run = simulate(write_twice, 2, tmp_path, faults=[Crash(rank=1, at=at)])
    assert isinstance(run.errors[1], RankKilled)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == left


def test_a_rank_killed_at_a_collective_changes_no_file_either(tmp_path):
    def remove_at_the_end():
        try:
            dist.barrier()
        finally:
            (tmp_path / "file").unlink()

    (tmp_path / "file").touch()
    run = simulate(remove_at_the_end, 1, faults=[Crash(rank=0, at="barrier#1")])
    assert isinstance(run.errors[0], RankKilled)
    assert (tmp_path / "file").exists()


def test_the_operations_of_a_run_are_places():
    assert operations_of(simulate(add_up, 2)) == [f"all_reduce#{number}" for number in (1, 2, 3, 4)]


# Drawn plans

PLACES = [f"all_reduce#{number}" for number in (1, 2, 3, 4)]


def counts_on_rank_0():
    """Wrong: rank 0 answers for all, without asking whether they are still there."""
    total = torch.ones(2)
    for _ in range(4):
        try:
            dist.all_reduce(total)
        except RuntimeError:
            return "lost a rank" if dist.get_rank() else total.tolist()
    return total.tolist()


@given(plan=plans(4, PLACES))
@QUICK
def test_whatever_happens_a_run_ends_and_says_how(plan):
    run = simulate(add_up, 4, faults=plan)
    assert run.problem is None
    assert all((rank in run.errors) == (run.results[rank] is None) for rank in range(4))
    assert all(isinstance(error, PeerLost | RankKilled) for error in run.errors.values())


def test_a_plan_shrinks_to_one_fault_at_the_first_place():
    def answers_wrongly(plan):
        return simulate(counts_on_rank_0, 4, faults=plan).results[0] not in (None, [256.0, 256.0])

    assert find(plans(4, PLACES, most=3), answers_wrongly, settings=QUICK) in (
        [Crash(rank=1, at="all_reduce#1")],
        [Corrupt(rank=0, at="all_reduce#1", bit=2)],  # the sum of four rounds lower bits away
        [Partition(((0,), (1, 2, 3)), at="all_reduce#1")],
    )
