"""One cause is told once: a check that fails for the same cause as an earlier one refers to it."""

import pytest

SHUFFLES_APART = """
import torch

class Sampler:
    def __init__(self, dataset, num_replicas, rank, shuffle, seed, drop_last):
        self.length, self.ranks, self.rank = len(dataset), num_replicas, rank
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed + rank, drop_last, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.length // self.ranks if self.drop_last else -(-self.length // self.ranks)

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.seed + 1000 * self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist() if self.shuffle else list(range(self.length))
        while len(order) < len(self) * self.ranks:
            order += order
        return iter(order[self.rank : len(self) * self.ranks : self.ranks])

def get_distributed_sampler(dataset, num_replicas, rank, shuffle, seed, drop_last):
    return Sampler(dataset, num_replicas, rank, shuffle, seed, drop_last)
"""
CLIPS_FIRST = """
import torch
import torch.distributed as dist

def get_naive_ddp(module):
    for p in module.parameters():
        dist.broadcast(p.data, 0)
    return module

def naive_ddp_on_after_backward(ddp_model, optimizer):
    torch.nn.utils.clip_grad_norm_(ddp_model.parameters(), 0.5)
    for p in ddp_model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
"""


def diagnoses(grade_path, submission, component):
    (report,) = grade_path(submission, components=[component]).components
    return {check.id: check.diagnosis for check in report.checks if check.status == "failed"}


@pytest.mark.long
def test_ranks_that_shuffle_differently_are_told_of_once(grade_path, submit):
    first, *others = (found := diagnoses(grade_path, submit(SHUFFLES_APART), "distributed_sampler"))
    assert first == "seed_shared_by_ranks"
    assert "Ranks shuffle differently" in found[first]
    assert others
    assert {found[other] for other in others} == {"Looks like the same mistake as in seed_shared_by_ranks."}


def test_a_wrapper_that_clips_is_told_so_once(grade_path, submit):
    found = diagnoses(grade_path, submit(CLIPS_FIRST), "naive_ddp")
    assert list(found)[:2] == ["trains[one_rank]", "gradients_averaged"]
    assert "clipped by the wrapper" in found["trains[one_rank]"]
    assert found["gradients_averaged"] == "Looks like the same mistake as in trains[one_rank]."
