"""Far from zero, sound ways to compute a variance in float32 stay within the limit, and the usual formula does not."""

import pytest
import torch
from torch.nn.functional import batch_norm

from conformance.checks.trial import CaseTrial
from conformance.components.registry import COMPONENTS
from conformance.components.sync_batchnorm.case import SyncBatchNormCase
from conformance.components.sync_batchnorm.far_from_zero import rounding
from conformance.components.sync_batchnorm.whole_batch import whole
from conformance.oracle.tolerance import scale_of


def two_passes(parts):
    x = torch.cat(parts, 1)
    mean = x.sum(1) / x.shape[1]
    return mean, (x - mean[:, None]).square().sum(1) / x.shape[1]


def ranks_combined(parts):
    counts = torch.tensor([float(part.shape[1]) for part in parts])[:, None]
    variances, means = map(torch.stack, zip(*(torch.var_mean(part, 1, correction=0) for part in parts), strict=True))
    mean = (counts * means).sum(0) / counts.sum()
    return mean, (counts * (variances + (means - mean).square())).sum(0) / counts.sum()


def squares_less_square(parts):
    x = torch.cat(parts, 1)
    mean = x.sum(1) / x.shape[1]
    return mean, x.square().sum(1) / x.shape[1] - mean.square()


def trials():
    for seed in range(50):
        sizes = tuple(3 + (seed + rank) % 2 for rank in range(1 + seed % 4))
        case = SyncBatchNormCase(len(sizes), sizes=sizes, dimensions=3, far=True)
        yield CaseTrial(case, COMPONENTS["sync_batchnorm"].numbers(case, seed), [])


def error_over_limit(trial, way):
    """Return by how many times its limit the output is off, in the channel where that is most."""
    given, case = trial.given[0], trial.case
    x = torch.cat([one["x/0"] for one in trial.given])
    moments = way([one["x/0"].transpose(0, 1).flatten(1) for one in trial.given])
    seen = batch_norm(x, *moments, given["weight"], given["bias"], eps=case.eps)
    off = (seen.double() - torch.cat(whole(trial).outputs[0])).abs().nan_to_num(nan=torch.inf).amax((0, 2))
    return float((off / rounding(trial)["output"]).max())


@pytest.mark.parametrize("way", [two_passes, ranks_combined])
def test_sound_ways_stay_far_within_the_limit(way):
    assert max(error_over_limit(trial, way) for trial in trials()) < 0.25


def test_the_usual_formula_is_far_outside_of_it():
    assert min(error_over_limit(trial, squares_less_square) for trial in trials()) > 4


def largest_share(trial):
    """Return the largest error that rounding explains over the largest element of the output."""
    return float(rounding(trial)["output"].max()) / scale_of(whole(trial).outputs[0])


def test_a_script_puts_less_than_a_tenth_down_to_rounding():
    assert max(map(largest_share, trials())) < 0.1
