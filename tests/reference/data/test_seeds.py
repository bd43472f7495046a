"""Each rank and each worker process draws its own random numbers, the same in every run."""

import random

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from pytest_ddp import DDPContext, distributed
from reference.adapters import get_ddp_generator
from reference.data.seeds import rank_seed, seed_worker


class Drawn(Dataset[tuple[float, float, float]]):
    """Samples that are random numbers from three generators."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, _: int) -> tuple[float, float, float]:
        return torch.rand(()).item(), float(np.random.rand()), random.random()  # noqa: NPY002, S311  # what is to be seeded


def drawn(seed: int) -> list[float]:
    loader = DataLoader(Drawn(), generator=get_ddp_generator(seed), worker_init_fn=seed_worker, num_workers=2)
    return [float(number) for batch in loader for number in batch]


def test_no_two_ranks_of_neighbouring_runs_share_a_seed():
    seeds = {rank_seed(seed, rank) for seed in range(50) for rank in range(50)}
    assert len(seeds) == 50 * 50
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_without_a_group_it_is_rank_0s():
    assert get_ddp_generator(7).initial_seed() == rank_seed(7, 0)


@distributed(world_size=3)
def test_ranks_draw_differently_and_repeatably(ddp: DDPContext):
    mine = torch.rand(4, generator=get_ddp_generator(7))
    assert torch.equal(mine, torch.rand(4, generator=get_ddp_generator(7)))
    assert not torch.equal(mine, torch.rand(4, generator=get_ddp_generator(8)))
    everyones = [torch.empty_like(mine) for _ in range(ddp.world_size)]
    dist.all_gather(everyones, mine)
    assert len({tuple(numbers.tolist()) for numbers in everyones}) == ddp.world_size


def test_the_global_generators_stay_as_they_are():
    before = torch.get_rng_state()
    get_ddp_generator(7)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_draw_differently_and_repeatably():
    numbers = drawn(7)
    assert len(set(numbers)) == len(numbers)
    assert drawn(7) == numbers
    assert not set(drawn(8)) & set(numbers)
