"""A training that is killed at any collective or at any write to a file, and started again, ends with the same bits."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pytest_ddp.simulated import file_operations_of, operations_of, run_job, simulate
from pytest_ddp.simulated.faults import Crash, Delay, Fault, RankKilled, Rejoin
from reference.data.samplers import DistributedSampler
from reference.ddp.bucketed import BucketedDDP
from reference.training.trainer import Trainer
from reference.zero1.sharded_optimizer import ShardedOptimizer

RANKS = 2


def train(folder: Path) -> list[Tensor]:
    """Train for two epochs of two steps; save after each step, and go on from what was saved."""
    rank, path = dist.get_rank(), folder / "last.pt"
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(8, 4), torch.randn(8, 2))
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2))
    wrapped = BucketedDDP(model, 100 / 2**20)
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, RANKS, rank, shuffle=True))
    console = Console(quiet=True)
    trainer = Trainer(
        wrapped, optimizer, nn.functional.mse_loss, loader, checkpoint=path, checkpoint_every=1, console=console
    )
    torch.manual_seed(rank)
    if path.exists():
        trainer.resume(path)
    trainer.train(2)
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return simulate(train, RANKS, tmp_path_factory.mktemp("undisturbed")).results[0]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Every rank at every collective and message of it, and rank 0 at every operation on files."""
    run = simulate(train, RANKS, tmp_path_factory.mktemp("collectives"))
    collectives = [(rank, name) for rank in range(RANKS) for name in operations_of(run, rank)]
    return collectives, file_operations_of(train, RANKS, tmp_path_factory.mktemp("files"))


def assert_ends_the_same(plan: list[Fault], undisturbed: list[Tensor], folder: Path) -> None:
    job = run_job(train, RANKS, folder, faults=plan)
    job.raise_problem()
    assert len(job.starts) == 1 + sum(isinstance(fault, Crash) for fault in plan), plan
    for results in job.results:
        assert all(torch.equal(one, other) for one, other in zip(results, undisturbed, strict=True)), plan


def assert_ends_the_same_from(places, undisturbed, folder):
    for number, (rank, place) in enumerate(places):
        plan = [Crash(rank, place), Rejoin(rank)]
        assert_ends_the_same(plan, undisturbed, folder / str(number))


def test_there_is_every_kind_of_place(places):
    collectives, files = places
    assert {name.split("#")[0] for _, name in collectives} >= {"all_reduce", "broadcast", "gather"}
    assert {name.split("#")[0] for _, name in files} >= {"open", "write", "fsync", "replace", "unlink"}
    assert {rank for rank, _ in files} == {0}


def test_killed_at_places_all_over_a_training(places, undisturbed, tmp_path):
    collectives, files = places
    assert_ends_the_same_from(collectives[::31] + files[::67], undisturbed, tmp_path)


PARTS = 12  # of a minute or less


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_killed_at_every_place(places, undisturbed, tmp_path, part):
    collectives, files = places
    assert_ends_the_same_from([*collectives, *files][part::PARTS], undisturbed, tmp_path)


def test_killed_twice(places, undisturbed, tmp_path):
    collectives, _ = places
    middle, last = collectives[len(collectives) // 2], collectives[-1]
    plan = [Crash(*last), Rejoin(last[0]), Crash(*middle, start=1), Rejoin(middle[0], start=1), Delay(1, "broadcast#1")]
    assert_ends_the_same(plan, undisturbed, tmp_path)


def test_a_killed_rank_leaves_half_a_write_and_what_was_there_before(places, tmp_path):
    """The kill is real: a checkpoint that is being written is a file beside the old one, and stays there."""
    writes = [place for _, place in places[1] if place.startswith("write")]
    run = simulate(train, RANKS, tmp_path, faults=[Crash(0, writes[-1])])
    assert isinstance(run.errors[0], RankKilled)
    assert (tmp_path / "last.pt").stat().st_size == (tmp_path / ".last.pt.partial").stat().st_size + 16
