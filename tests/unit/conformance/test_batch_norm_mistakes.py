"""The mistakes of batch norms have float64 statistics: where shares such as 2/5 are rounded to float32, none fits."""

from types import SimpleNamespace

import torch

from conformance.components.sync_batchnorm.case import SyncBatchNormCase
from conformance.components.sync_batchnorm.whole_batch import named_mistake


def test_ranks_weighted_by_samples_are_named_where_their_inputs_differ_in_length():
    case = SyncBatchNormCase(2, sizes=(2, 3), dimensions=3, stretched=True)
    xs = [torch.randn(size, 3, length, dtype=torch.float64) for size, length in zip((2, 3), (3, 4), strict=True)]
    mean = sum(len(x) / 5 * x.mean((0, 2)) for x in xs)
    var = sum(len(x) / 5 * (x - mean[:, None]).square().mean((0, 2)) for x in xs)
    seen = (xs[0] - mean[:, None]) / (var[:, None] + case.eps).sqrt()
    trial = SimpleNamespace(case=case, given=[{"x/0": x} for x in xs], answers=[{"output/0": seen}])
    assert "whatever the length of these" in named_mistake(trial, 0, 0, torch.zeros_like(seen))
