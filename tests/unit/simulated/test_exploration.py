"""Exploring schedules: every order is found once, every bug is found and shrunk, and right code gets a certificate."""

import random

import pytest
import torch
import torch.distributed as dist
from schedule_bugs import BUGS, mismatched_order
from torch import nn

from pytest_ddp.simulated import Recorded, simulate
from pytest_ddp.simulated.exploration import RandomSchedule, explore, explore_randomly
from pytest_ddp.simulated.exploration.guided import GuidedRun
from pytest_ddp.simulated.exploration.shrinking import fewest_deviations
from pytest_ddp.simulated.exploration.trace import Trace
from reference.ddp.bucketed import BucketedDDP


def train_with_buckets():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(6)])
    wrapped = BucketedDDP(model, 8 * 8 * 4 / 2**20)
    torch.manual_seed(dist.get_rank())
    wrapped(torch.randn(3, 8)).square().mean().backward()
    wrapped.finish_gradient_synchronization()
    return [parameter.grad.clone() for parameter in model.parameters()]


def two_reductions():
    numbers = [torch.ones(2) * dist.get_rank(), torch.ones(2)]
    for work in [dist.all_reduce(each, async_op=True) for each in numbers]:
        work.wait()
    return numbers


def polls_once():
    number = torch.ones(2)
    work = dist.all_reduce(number, async_op=True)
    work.is_completed()
    work.wait()
    return number


def receives_from_any():
    if dist.get_rank():
        dist.send(torch.ones(1), 0)
        return []
    received = [torch.zeros(1), torch.zeros(1)]
    for each in received:
        dist.recv(each)
    return received


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize(("function", "kind", "deviations"), [(bug, *found) for bug, found in BUGS.items()])
def test_each_bug_is_found_and_shrunk(function, kind, deviations, world_size):
    exploration = explore(function, world_size)
    assert exploration.runs <= 1_000
    assert exploration.certificate is None
    assert exploration.finding.failure.kind == kind
    assert len(exploration.finding.deviations) <= deviations
    with pytest.raises(AssertionError, match=rf"(?s){kind}: .*schedule: Recorded\(\("):
        exploration.raise_finding()


@pytest.mark.parametrize(("function", "kind"), [(bug, found[0]) for bug, found in BUGS.items()])
def test_random_schedules_find_each_bug(function, kind):
    exploration = explore_randomly(function, 2)
    assert exploration.finding.failure.kind == kind
    assert len(exploration.finding.deviations) <= 4


def test_the_reference_with_buckets_gets_a_certificate():
    exploration = explore(train_with_buckets, 4)
    assert str(exploration.certificate) == (
        "The 1 distinguishable order of 4 ranks and 8 operations has no problem (1 runs)."
    )
    assert explore_randomly(train_with_buckets, 4, runs=10).finding is None


@pytest.mark.parametrize(
    ("function", "world_size", "every_landing", "orders"),
    [
        (two_reductions, 2, False, 1),
        (two_reductions, 2, True, 121),  # 11 of each rank
        (polls_once, 2, False, 3),  # no rank can say "no" if the others have seen all launches
        (polls_once, 3, False, 19),
        (receives_from_any, 3, False, 10),
    ],
)
def test_every_order_is_found(function, world_size, every_landing, orders):
    exploration = explore(function, world_size, every_landing=every_landing)
    assert exploration.certificate.orders == orders
    assert f"All {orders} distinguishable orders" in str(exploration.certificate) or orders == 1


@pytest.mark.parametrize("function", [two_reductions, polls_once])
def test_random_runs_show_no_other_order(function):
    """Explored orders are counted by their traces; no random run has one more."""
    world_size = 2
    orders = explore(function, world_size, every_landing=True).certificate.orders
    seen = set()
    for number in range(50):
        run = _RandomlyGuided(number)
        simulate(run.watched(function), world_size, schedule=run, watch=run.watch)
        seen.add(Trace(run.finish()).identity)
    assert len(seen) <= orders


class _RandomlyGuided(GuidedRun):
    def __init__(self, seed):
        super().__init__(every_landing=True)
        self._random = random.Random(seed)  # noqa: S311  no secret

    def choose(self, options):
        return self._random.randrange(len(options))


def test_without_a_certificate_if_there_are_more_schedules():
    exploration = explore(two_reductions, 2, every_landing=True, most=20)
    assert (exploration.runs, exploration.finding, exploration.certificate) == (20, None, None)


def test_a_finding_replays():
    finding = explore(mismatched_order, 3).finding
    texts = {simulate(mismatched_order, 3, schedule=Recorded(finding.choices)).problem.text for _ in range(5)}
    assert texts == {finding.failure.text}


def test_a_random_schedule_is_its_seed():
    finding = explore_randomly(mismatched_order, 3).finding
    run = simulate(mismatched_order, 3, schedule=RandomSchedule(finding.seed))
    assert run.choices == finding.found


def test_shrinking_leaves_out_what_is_not_needed():
    def fails(choices):
        return [4] * 12 if len(choices) > 7 and choices[3] >= 2 and choices[7] == 1 else None

    assert fewest_deviations((1, 2, 3, 3, 0, 1, 0, 1, 2), fails) == (0, 0, 0, 2, 0, 0, 0, 1)


def test_shrinking_replaces_several_deviations_by_one():
    def fails(choices):
        return [4] * 12 if sum(choices[:5]) >= 3 else None

    assert fewest_deviations((1, 1, 0, 0, 1), fails) == (3,)
