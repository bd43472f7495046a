"""Samplers that shuffle are not accused by chance, however many ranks share the samples."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from conformance.checks.trial import CaseTrial
from conformance.components.distributed_sampler.case import SamplerCase
from conformance.components.registry import COMPONENTS
from conformance.protocol.messages import Answer
from conformance.strategies import Bounds
from conformance.workload.numbers import Tensors

_UNLIKE = {
    "shuffles",
    "set_epoch_reshuffles",
    "seed_decides",
    "set_epoch_reshuffles[everything]",
}
_CHECKS = [check for check in COMPONENTS["distributed_sampler"].checks if check.id in _UNLIKE]


def answered_rightly(case: SamplerCase) -> CaseTrial:
    """Return what torch's own sampler gives in epochs that are all set."""
    answers = [Answer(_of_rank(case, rank)) for rank in range(case.world_size)]
    return CaseTrial(case, [], [answers])


def _of_rank(case: SamplerCase, rank: int) -> Tensors:
    epochs = {f"epoch/{at}": _share(case, rank, case.seed, epoch or 0) for at, epoch in enumerate(case.epochs)}
    length = torch.tensor(len(_sampler(case, rank, case.seed)))
    return {**epochs, "other_seed": _share(case, rank, case.seed + 1, 0), "length": length}


def _share(case: SamplerCase, rank: int, seed: int, epoch: int) -> torch.Tensor:
    sampler = _sampler(case, rank, seed)
    sampler.set_epoch(epoch)
    return torch.tensor(list(sampler))


def _sampler(case: SamplerCase, rank: int, seed: int) -> DistributedSampler:
    options = {"shuffle": case.shuffle, "seed": seed, "drop_last": case.drop_last}
    return DistributedSampler(range(case.length), case.world_size, rank, **options)


@pytest.mark.parametrize("check", _CHECKS, ids=lambda check: check.id)
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_right_sampler_of_many_ranks_passes(check, data):
    check.assertion(answered_rightly(data.draw(check.scenarios(Bounds(16)))))
