"""Functions that are wrong under one schedule or under all, and how exploration shows it.

As a command, it replays: reads [[name, world size, choices or seed], ...] from stdin, and prints how each ends.
"""

import json
import sys

import torch
import torch.distributed as dist

from pytest_ddp.simulated import Recorded, Simulation, simulate
from pytest_ddp.simulated.exploration import RandomSchedule
from pytest_ddp.simulated.exploration.bits import digest


def forgotten_wait():
    bucket = torch.ones(2) * dist.get_rank()
    dist.all_reduce(bucket, async_op=True)
    return bucket * 2


def forgotten_wait_of_the_result():
    bucket = torch.ones(2) * dist.get_rank()
    dist.all_reduce(bucket, async_op=True)
    return bucket


def write_in_flight():
    bucket = torch.ones(2) * dist.get_rank()
    work = dist.all_reduce(bucket, async_op=True)
    bucket.mul_(2)
    work.wait()
    return bucket


def arrival_order():
    """Send each bucket on when it has arrived: where ranks see another order, they send different buckets."""
    buckets = [torch.full((size,), 1.0 + dist.get_rank()) for size in (1, 2, 3)]
    works = dict(enumerate([dist.all_reduce(bucket, async_op=True) for bucket in buckets]))
    sent = []
    while works:
        for number in [number for number, work in works.items() if work.is_completed()]:
            del works[number]
            sent.append(dist.all_reduce(buckets[number], async_op=True))
    for work in sent:
        work.wait()
    return buckets


def mismatched_order():
    """Do first what is cheap if the gradients are there already."""
    gradients, largest = torch.ones(2), torch.ones(2)
    work = dist.all_reduce(gradients, async_op=True)
    operations = [dist.ReduceOp.SUM, dist.ReduceOp.MAX]
    for operation in operations[::-1] if work.is_completed() else operations:
        dist.all_reduce(largest, op=operation)
    work.wait()
    return gradients


def crosswise_groups():
    everyone = list(range(dist.get_world_size()))
    groups = [dist.new_group(everyone), dist.new_group(everyone)]
    for group in groups[::-1] if dist.get_rank() else groups:
        dist.all_reduce(torch.ones(1), group=group)


def barrier_in_a_branch():
    if dist.get_rank() == 0:
        dist.barrier()


BUGS = {
    forgotten_wait: ("UseBeforeWait", 0),
    forgotten_wait_of_the_result: ("DifferentResults", 2),
    write_in_flight: ("WriteInFlight", 0),
    arrival_order: ("Mismatch", 1),
    mismatched_order: ("Mismatch", 1),
    crosswise_groups: ("Deadlock", 0),
    barrier_in_a_branch: ("Deadlock", 0),
}
"""Each bug with the kind of its failure, and how many deviations from the default schedule show it."""


def replay(name: str, world_size: int, schedule: list[int] | str) -> str:
    """Run a bug under choices, or under the random schedule of a seed; return how it ends."""
    chooses = RandomSchedule(schedule) if isinstance(schedule, str) else Recorded(schedule)
    return ending(simulate(globals()[name], world_size, schedule=chooses))


def ending(run: Simulation) -> str:
    """Return the same for two runs that ended in the same way, in any process."""
    return digest([run.problem and run.problem.text, run.choices, [str(event) for event in run.events], run.results])


if __name__ == "__main__":
    print(json.dumps([replay(*each) for each in json.load(sys.stdin)]))
