"""One cause is told once: a check that fails for the same cause as an earlier one refers to it."""

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


def diagnoses(grade_path, submission, component):
    (report,) = grade_path(submission, components=[component]).components
    return {check.id: check.diagnosis for check in report.checks if check.status == "failed"}


def test_ranks_that_shuffle_differently_are_told_of_once(grade_path, submit):
    first, *others = (found := diagnoses(grade_path, submit(SHUFFLES_APART), "distributed_sampler"))
    assert first == "seed_shared_by_ranks"
    assert "Ranks shuffle differently" in found[first]
    assert others
    assert {found[other] for other in others} == {"This follows from seed_shared_by_ranks."}
