"""What it costs to observe: three steps of training a small MLP with torch's DDP on 2 ranks, observed and not.

Both kinds run in turn on the same warm ranks, so that what else the machine does falls on both; the ratio is that of
the medians. Wanted: at most 1.5.
"""

import statistics
import sys
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_ddp.planning.world import World
from pytest_ddp.pool.pool import RankPool
from pytest_ddp.remote_calls.pickling import pickle_call, unpickle_results

ROUNDS, REPEATS, STEPS = 15, 20, 3
WANTED = 1.5


def train() -> float:
    """Return the seconds of the median training of this rank: `STEPS` steps of forward, backward and update."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    inputs = torch.randn(32, 64)
    return statistics.median(_seconds(wrapped, optimizer, inputs) for _ in range(REPEATS))


def _seconds(wrapped: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> float:
    began = time.perf_counter()
    for _ in range(STEPS):
        optimizer.zero_grad()
        wrapped(inputs).pow(2).mean().backward()
        optimizer.step()
    return time.perf_counter() - began


def main() -> int:
    """Print the medians and their ratio; return 1 if it is above what is wanted."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with RankPool() as ranks:
        for _ in range(ROUNDS):
            for observe, found in seconds.items():
                world = World(2, observe=observe)
                body = pickle_call(train, (), {})
                found.extend(
                    unpickle_results(ranks.run(world, "pytest_ddp.remote_calls.calls:call", body, timeout=60), world)
                )
    plain, observed = (statistics.median(seconds[observe]) for observe in (False, True))
    print(f"{STEPS} steps of DDP on 2 ranks, median of {2 * ROUNDS} ranks")
    print(f"  not observed  {plain * 1e3:6.2f} ms")
    print(f"  observed      {observed * 1e3:6.2f} ms   ratio {observed / plain:.2f}, at most {WANTED} wanted")
    return int(observed / plain > WANTED)


if __name__ == "__main__":
    sys.exit(main())
