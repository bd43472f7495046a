"""Simulated ranks: what they return, what is reported, and what is left in the process."""

import random
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pytest_ddp.simulated import Deadlock, Mismatch, PeerLost, ProblemFound, Recorded, simulate


def sums():
    numbers = torch.full((3,), float(dist.get_rank()))
    dist.all_reduce(numbers)
    return numbers.tolist()


def test_every_rank_returns_its_result():
    run = simulate(lambda base: base + dist.get_rank(), 4, 10)
    assert (run.results, run.errors, run.problem) == ([10, 11, 12, 13], {}, None)


def test_collectives_have_real_numbers():
    assert simulate(sums, 4).results == [[6.0] * 3] * 4


@pytest.mark.parametrize("world_size", [1, 2, 64])
def test_ddp_of_torch_gives_all_ranks_the_same_gradients(world_size):
    def step():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-4)
        torch.manual_seed(dist.get_rank())
        wrapped(torch.randn(3, 4)).square().mean().backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    run = simulate(step, world_size)
    run.raise_problem()
    assert all(torch.equal(gradients, run.results[0]) for gradients in run.results)
    assert run.results[0].count_nonzero()


def test_a_rank_that_waits_for_one_that_has_returned_is_a_deadlock():
    def leave_early():
        if dist.get_rank() == 0:
            dist.barrier()

    run = simulate(leave_early, 3)
    assert isinstance(run.problem, Deadlock)
    assert "rank 0 waits in barrier #1" in run.problem.text
    assert "which ranks 1, 2 never entered: each has returned" in run.problem.text
    with pytest.raises(ProblemFound, match="Deadlock: rank 0 waits"):
        run.raise_problem()


def test_different_collectives_are_a_mismatch():
    def disagree():
        dist.all_reduce(torch.ones(2)) if dist.get_rank() else dist.broadcast(torch.ones(2), 0)

    run = simulate(disagree, 2)
    assert isinstance(run.problem, Mismatch)
    assert "rank 1 calls all_reduce #1" in run.problem.text
    assert "where rank 0 called broadcast #1" in run.problem.text


def test_ranks_that_wait_for_a_failed_rank_lose_it():
    def fail():
        if dist.get_rank() == 1:
            raise ValueError("rank 1 fails")
        sums()

    run = simulate(fail, 3)
    assert str(run.errors[1]) == "rank 1 fails"
    assert all(isinstance(run.errors[rank], PeerLost) for rank in (0, 2))
    assert "which rank 1 never entered: it has failed" in str(run.errors[0])


def test_groups_of_some_ranks_match_among_themselves():
    def halves():
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        number = torch.tensor(2 ** dist.get_rank())
        dist.all_reduce(number, group=groups[dist.get_rank() // 2])
        return number.item()

    assert simulate(halves, 4).results == [3, 3, 12, 12]


def test_the_choices_replay_a_run():
    class Backwards:
        def choose(self, options):
            return len(options) - 1

    run = simulate(sums, 3, schedule=Backwards())
    assert any(run.choices)
    assert run.events != simulate(sums, 3).events
    assert simulate(sums, 3, schedule=Recorded(run.choices)).events == run.events


def test_the_process_is_as_before():
    def change():
        torch.manual_seed(dist.get_rank())
        random.seed(dist.get_rank())
        dist.barrier()
        return torch.rand(()).item(), random.getrandbits(32)

    threads, before = set(threading.enumerate()), (torch.get_rng_state().tolist(), random.getstate())
    runs = [simulate(change, 4), simulate(change, 4)]
    assert runs[0] == runs[1]
    assert len(set(runs[0].results)) == 4
    assert (torch.get_rng_state().tolist(), random.getstate()) == before
    assert set(threading.enumerate()) == threads
    assert not dist.is_initialized()


def test_threads_end_where_ranks_are_stuck():
    left = []

    def wait():
        try:
            dist.barrier() if dist.get_rank() else None
        finally:
            left.append(dist.get_rank())

    threads = set(threading.enumerate())
    assert isinstance(simulate(wait, 3).problem, Deadlock)
    assert set(threading.enumerate()) == threads
    assert left == [0, 1, 2]


def test_ranks_that_wait_alike_are_reported_together():
    def leave_one_out():
        if dist.get_rank() != 3:
            dist.barrier()

    text = simulate(leave_one_out, 200).problem.text
    assert text.startswith("ranks 0-2, 4-199 wait in barrier #1 at ")
    assert text.endswith("which rank 3 never entered: it has returned")


def test_asking_for_ever_whether_an_operation_is_complete_is_a_deadlock():
    def poll():
        if dist.get_rank() < 2:
            work = dist.all_reduce(torch.ones(1), async_op=True)
            while not work.is_completed():
                pass

    problem = simulate(poll, 3).problem
    assert isinstance(problem, Deadlock)
    assert "asks again and again whether all_reduce #1 float32[1] at" in problem.text


@pytest.mark.parametrize("presses", [0, 1])
def test_ctrl_c_ends_the_ranks(presses):
    """Rank 0 presses it while the main thread is about to wait, rank 1 later."""

    def compute():
        if dist.get_rank() == presses:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            while True:
                time.sleep(0.001)
        dist.barrier()

    threads = set(threading.enumerate())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            simulate(compute, 3)
    finally:
        signal.signal(signal.SIGINT, before)
    assert set(threading.enumerate()) == threads
    assert simulate(sums, 2).results == [[1.0] * 3] * 2
