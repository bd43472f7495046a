"""Exploring schedules: every order is found once, every bug is found and shrunk, and right code gets a certificate."""

import random

import pytest
import torch
import torch.distributed as dist
from schedule_bugs import BUGS, mismatched_order
from torch import nn

from pytest_ddp.simulated import Clamped, Recorded, simulate
from pytest_ddp.simulated.exploration import RandomSchedule, explore, explore_randomly
from pytest_ddp.simulated.exploration.guided import GuidedRun
from pytest_ddp.simulated.exploration.shrinking import fewest_deviations
from pytest_ddp.simulated.exploration.trace import Trace
from reference.ddp.bucketed import BucketedDDP
from reference.ddp.overlapped import OverlappedDDP
from reference.zero1.sharded_optimizer import ShardedOptimizer


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


def takes_what_is_there():
    """Right: which reduction is complete first changes what the rank does first, and no bit."""
    numbers = [torch.full((4,), float(dist.get_rank() + number)) for number in range(2)]
    works = [dist.all_reduce(number, async_op=True) for number in numbers]
    doubled = {place: numbers[place] * 2 for place in (1, 0) if works[place].is_completed()}
    for place in {0, 1} - set(doubled):
        works[place].wait()
        doubled[place] = numbers[place] * 2
    return doubled[0], doubled[1]


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
    assert exploration.runs <= 3
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
        "The only distinguishable order of 4 ranks and 8 operations has no problem (1 run)."
    )
    assert explore_randomly(train_with_buckets, 4, runs=10).finding is None


def train_twice(wrap):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)])
    wrapped = wrap(model)
    optimizer = ShardedOptimizer(model.parameters(), torch.optim.Adam)
    torch.manual_seed(dist.get_rank())
    for _ in range(2):
        optimizer.zero_grad()
        wrapped(torch.randn(3, 8)).square().mean().backward()
        if hasattr(wrapped, "finish_gradient_synchronization"):
            wrapped.finish_gradient_synchronization()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("wrap", [OverlappedDDP, nn.parallel.DistributedDataParallel])
def test_training_has_one_order_if_it_waits_for_what_it_uses(wrap):
    assert explore(train_twice, 4, wrap).certificate.orders == 1


@pytest.mark.long
def test_six_buckets_of_four_ranks_give_the_same_bits_wherever_results_land():
    certificate = explore(train_with_buckets, 4, place_landings=True).certificate
    assert (certificate.orders, certificate.placed) == (1, 200)


def test_landings_are_placed_everywhere_before_the_wait():
    certificate = explore(two_reductions, 2, place_landings=True).certificate
    assert str(certificate).endswith("(1 run). 8 more runs, each with one result at another place, give the same bits.")


@pytest.mark.parametrize(
    ("function", "world_size", "every_landing", "orders"),
    [
        (two_reductions, 2, False, 1),
        (two_reductions, 2, True, 121),  # 11 of each rank
        (polls_once, 2, False, 2**2),  # each rank asks once, and hears "yes" or "not yet"
        (polls_once, 3, False, 2**3),
        (takes_what_is_there, 2, False, 4**2),  # each rank asks twice
        (takes_what_is_there, 3, False, 4**3),
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


@pytest.mark.parametrize("method", ["then", "add_done_callback"])
def test_callbacks_run_in_every_order(method):
    def in_order_of_callbacks():
        order, futures = [], []
        for number in range(2):
            future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
            following = getattr(future, method)(lambda _, number=number: order.append(number))
            futures.append(following or future)
        for future in futures:
            future.wait()
        return order

    finding = explore(in_order_of_callbacks, 2).finding
    assert finding.failure.kind == "DifferentResults"
    assert "all_reduce#2 lands on rank" in str(finding)


@pytest.mark.parametrize("method", ["then", "add_done_callback"])
def test_a_callback_may_read_results_that_landed_before_it_was_added(method):
    def adds_it_late():
        work, seen = dist.all_reduce(tensor := torch.ones(2), async_op=True), []
        dist.barrier()
        future = work.get_future()
        following = getattr(future, method)(lambda _: seen.append(torch.stack([tensor])))
        (following or future).wait()
        return seen

    seen = explore(adds_it_late, 2)
    assert seen.finding is None
    assert seen.runs > 1


def test_a_bug_that_needs_several_reversals_is_found_soon():
    def gives_up_after_three_polls():
        for _ in range(6):
            work = dist.all_reduce(number := torch.ones(1), async_op=True)
            if not any(work.is_completed() for _ in range(3)):
                number.sum()

    exploration = explore(gives_up_after_three_polls, 3)
    assert exploration.runs <= 10
    assert exploration.finding.failure.kind == "UseBeforeWait"
    assert str(exploration.finding).count("is told that all_reduce#6 is not complete yet") == 3


def test_without_a_certificate_if_there_are_more_schedules():
    exploration = explore(two_reductions, 2, every_landing=True, most=20)
    assert (exploration.runs, exploration.finding, exploration.certificate) == (20, None, None)


def test_a_finding_replays():
    finding = explore(mismatched_order, 3).finding
    texts = {simulate(mismatched_order, 3, schedule=Recorded(finding.choices)).problem.text for _ in range(5)}
    assert texts == {finding.failure.text}


def sends_by_arrival():
    numbers = [torch.ones(size) for size in (1, 2, 3)]
    for number in numbers:
        dist.broadcast(number, 0)
    first = dist.all_reduce(numbers[0], async_op=True)
    dist.barrier()
    for number in numbers[1:] if first.is_completed() else numbers[:0:-1]:
        dist.all_reduce(number)


@pytest.mark.parametrize("most", [0, 4, 8, 100])
def test_a_finding_that_few_runs_shrink_replays_in_every_way(most):
    """What is left of its schedule has no choice for which there is no option."""
    finding = explore(sends_by_arrival, 3, most_to_shrink=most).finding
    for schedule in (Recorded(finding.choices), Clamped(finding.choices)):
        assert simulate(sends_by_arrival, 3, schedule=schedule).problem.text == finding.failure.text


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
