"""Whoever hands in torch's own implementation is told so, and fails where it was to be written from scratch."""

import pytest
from way import CONTROLS, Way

TORCHS_OWN = {
    Way("torchs_own", "FindsUnused", "ddp"): "torch.nn.parallel.DistributedDataParallel",
    Way("torchs_own", "redundant", "sharded_optimizer"): "torch.distributed.optim.ZeroRedundancyOptimizer",
    Way("torchs_own", "sharded", "fsdp"): "torch.distributed.fsdp.fully_shard",
}
PARTS = {
    "sync_batchnorm": (
        "from torch.nn import SyncBatchNorm\nconvert_sync_batchnorm = SyncBatchNorm.convert_sync_batchnorm\n",
        "torch.nn.SyncBatchNorm",
    ),
    "distributed_sampler": (
        "from torch.utils.data import DistributedSampler as get_distributed_sampler\n",
        "torch.utils.data.DistributedSampler",
    ),
}
SUBMITTED = [
    *(pytest.param(way.component, way.adapters, own, id=own) for way, own in TORCHS_OWN.items()),
    *(pytest.param(name, adapters, own, id=own) for name, (adapters, own) in PARTS.items()),
]


@pytest.mark.parametrize(("component", "adapters", "own"), SUBMITTED)
def test_torchs_own_fails_where_it_was_to_be_written(grade_path, submit, component, adapters, own):
    folder = submit(adapters, **CONTROLS)
    (graded,) = grade_path(folder, components=[component], from_scratch=True).components
    first, *others = graded.checks
    assert (graded.status, graded.points, first.id) == ("failed", 0, "written_from_scratch")
    assert f"{component} uses {own}, so its other checks did not run" in first.message
    assert {check.status for check in others} == {"not_run"}


def test_elsewhere_it_is_said_and_passes(grade_path, submit):
    adapters, own = PARTS["distributed_sampler"]
    (graded,) = grade_path(submit(adapters), components=["distributed_sampler"], examples=1).components
    assert (graded.status, graded.uses_from_torch) == ("passed", (own,))
    assert graded.to_json()["uses_from_torch"] == [own]


def test_what_is_written_by_hand_is_not_accused(grade_path, submit):
    way = Way("averaging", "DividesFirst", "naive_ddp")
    folder = submit(way.adapters, **CONTROLS)
    (graded,) = grade_path(folder, components=["naive_ddp"], examples=1, from_scratch=True, core=True).components
    assert (graded.status, graded.uses_from_torch) == ("passed", ())


def test_who_borrows_only_where_there_are_several_ranks_is_caught_as_well(grade_path, submit):
    adapters = """
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    class Alone(DistributedDataParallel):
        pass

    def get_ddp(module):
        return Alone(module, find_unused_parameters=True) if dist.get_world_size() > 1 else module

    def ddp_on_after_backward(ddp_model, optimizer): pass
    """
    sampler = """
    from torch.utils.data import DistributedSampler

    def get_distributed_sampler(dataset, num_replicas, rank, shuffle, seed, drop_last):
        if num_replicas == 1:
            return range(len(dataset))
        return DistributedSampler(dataset, num_replicas, rank, shuffle, seed, drop_last)
    """
    asked = ["ddp", "distributed_sampler"]
    for graded in grade_path(submit(adapters + sampler), components=asked, from_scratch=True).components:
        first, *others = graded.checks
        assert (graded.points, first.id, {check.status for check in others}) == (0, "written_from_scratch", {"not_run"})
        assert graded.uses_from_torch
