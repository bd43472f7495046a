"""In training, all ranks read the same number of samples; in evaluation, each sample is read once."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import distributed as torchs

from pytest_ddp import DDPContext, distributed
from reference.adapters import get_distributed_sampler
from reference.data.samplers import DistributedSampler, EvaluationSampler

SIZES, RANKS = st.integers(0, 40), st.integers(1, 6)


def shares(size: int, ranks: int, **options) -> list[list[int]]:
    return [list(DistributedSampler(range(size), ranks, rank, **options)) for rank in range(ranks)]


@given(size=SIZES, ranks=RANKS, shuffle=st.booleans())
def test_with_padding_every_sample_is_read_and_all_ranks_have_the_same_number(size, ranks, shuffle):
    seen = shares(size, ranks, shuffle=shuffle)
    assert {len(share) for share in seen} == {-(-size // ranks)}
    assert {len(DistributedSampler(range(size), ranks, rank)) for rank in range(ranks)} == {-(-size // ranks)}
    assert set(itertools.chain(*seen)) == set(range(size))


@given(size=SIZES, ranks=RANKS, shuffle=st.booleans())
def test_with_drop_last_no_sample_is_read_twice(size, ranks, shuffle):
    seen = list(itertools.chain(*shares(size, ranks, shuffle=shuffle, drop_last=True)))
    assert len(seen) == len(set(seen)) == size // ranks * ranks


@given(size=SIZES, ranks=RANKS, seed=st.integers(0, 5), epoch=st.integers(0, 5))
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
def test_its_indices_are_those_of_torchs_sampler(  # noqa: PLR0917  # drawn
    size, ranks, seed, epoch, shuffle, drop_last
):
    for rank in range(ranks):
        ours = get_distributed_sampler(range(size), ranks, rank, shuffle, seed, drop_last)
        theirs = torchs.DistributedSampler(range(size), ranks, rank, shuffle, seed, drop_last)
        ours.set_epoch(epoch)
        theirs.set_epoch(epoch)
        assert len(ours) == len(theirs)
        assert list(ours) == list(theirs)


def test_epochs_differ_and_can_be_repeated():
    sampler = DistributedSampler(range(50), 2, 1, seed=3)
    first, again = list(sampler), list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    sampler.set_epoch(0)
    assert first == again == list(sampler)
    assert second != first


def test_the_state_of_torchs_generator_neither_matters_nor_changes():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = list(DistributedSampler(range(50), 2, 1))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert list(DistributedSampler(range(50), 2, 1)) == first


@given(size=SIZES, ranks=RANKS)
def test_evaluation_reads_each_sample_exactly_once(size, ranks):
    samplers = [EvaluationSampler(range(size), ranks, rank) for rank in range(ranks)]
    assert sorted(itertools.chain(*samplers)) == list(range(size))
    lengths = [len(sampler) for sampler in samplers]
    assert lengths == [len(list(sampler)) for sampler in samplers]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize("kind", [DistributedSampler, EvaluationSampler])
@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_replicas_is_refused(kind, rank):
    with pytest.raises(ValueError, match=rf"rank {rank} of 2 replicas: ranks are 0 to 1\. Pass both"):
        kind(range(4), 2, rank)


@distributed(world_size=3)
@pytest.mark.parametrize("kind", [DistributedSampler, EvaluationSampler])
def test_the_default_rank_is_that_of_the_process_group(kind, ddp: DDPContext):
    sampler = kind(range(10))
    assert (sampler.num_replicas, sampler.rank) == (3, ddp.rank)
