"""How long a step of the sharded optimizer takes beside torch's `ZeroRedundancyOptimizer`, and how even the shares are.

AdamW trains copies of a transformer of 52 million parameters, all with gradients, with one thread per rank. Only `step`
is timed, from the moment when all ranks are ready until the last rank is done. In each round every optimizer makes one
step, so other load on the machine slows all of them. A ratio compares two steps of one round. Addresses in memory
change the time of a step by a few percent, so the ranks are started three times, and each time another optimizer is
made first and steps first.

Shown: the median of the ratios, their quartiles, and the interval that holds the true median with 95% probability.
Wanted: the interval does not lie above 1.0, for both options of torch's optimizer; and no rank has more than 1.05 times
an even share of the state.

    python benchmarks/optimizer_step.py [--world-size 1 --backend nccl] [--json results.json]
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import AdamW, Optimizer

from reference import models
from reference.communication.launch import launch
from reference.communication.process_group import current_device
from reference.zero1.sharded_optimizer import ShardedOptimizer

MODEL, LAUNCHES, WARM_UP = "transformer-50m", 3, 2
OURS, DEFAULT, VIEWS = "reference", "torch by default", "torch with parameters_as_bucket_view"
MOST_TIME, MOST_STATE = 1.0, 1.05

OPTIMIZERS: dict[str, Callable[[list[Tensor]], Optimizer]] = {
    DEFAULT: lambda parameters: ZeroRedundancyOptimizer(parameters, AdamW, lr=1e-4),
    VIEWS: lambda parameters: ZeroRedundancyOptimizer(parameters, AdamW, parameters_as_bucket_view=True, lr=1e-4),
    OURS: lambda parameters: ShardedOptimizer(parameters, AdamW, lr=1e-4),
}


@dataclass(frozen=True)
class Measured:
    """One optimizer: the seconds of each step, and the bytes of optimizer state on each rank."""

    seconds: list[float]
    state_bytes: list[int]

    @property
    def largest_share(self) -> float:
        """The largest share of the state, where 1 is an even share."""
        return max(self.state_bytes) * len(self.state_bytes) / sum(self.state_bytes)


def measure(rounds: int, first: int, results: Path) -> None:
    """Let the optimizers step in turn, on every rank. Rank 0 writes the figures to `results`.

    Args:
        rounds: how many steps of each optimizer are timed.
        first: index of the optimizer that is made first and steps first.
        results: the JSON file to write.
    """
    torch.set_num_threads(1)
    optimizers = contestants([*OPTIMIZERS][first:] + [*OPTIMIZERS][:first])
    seconds: dict[str, list[float]] = {name: [] for name in optimizers}
    for _ in range(WARM_UP + rounds):
        for name, optimizer in optimizers.items():
            seconds[name].append(seconds_of_step(optimizer))
    measured = {name: Measured(seconds[name][WARM_UP:], state_bytes(each)) for name, each in optimizers.items()}
    if dist.get_rank() == 0:
        results.write_text(json.dumps({name: asdict(each) for name, each in measured.items()}), encoding="utf-8")


def contestants(names: list[str]) -> dict[str, Optimizer]:
    """Each optimizer with parameters of its own. They share the gradients, which no step changes."""
    torch.manual_seed(0)
    model = models.build(MODEL).to(current_device())
    gradients = [torch.randn_like(parameter) for parameter in model.parameters()]
    optimizers = {}
    for name in names:
        parameters = [nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizers[name] = OPTIMIZERS[name]([*parameters])
    return optimizers


def seconds_of_step(optimizer: Optimizer) -> float:
    """The time of one step, until all ranks are done."""
    wait_for_all()
    began = time.perf_counter()
    optimizer.step()
    wait_for_all()
    return time.perf_counter() - began


def wait_for_all() -> None:
    """Return when every rank, and its device, has finished its work."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    dist.barrier()


def state_bytes(optimizer: Optimizer) -> list[int]:
    """By rank, the bytes of the tensors in the optimizer's state."""
    inner = optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
    mine = sum(value.nbytes for state in inner.state.values() for value in state.values())
    shares = [0] * dist.get_world_size()
    dist.all_gather_object(shares, mine)
    return shares


def measure_in_new_processes(options: argparse.Namespace) -> dict[str, Measured]:
    """Start the ranks `LAUNCHES` times, and put the steps of all launches together."""
    together: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.json")
        for first in range(LAUNCHES):
            launch(measure, options.world_size, options.rounds, first, results, backend=options.backend)
            for name, each in json.loads(results.read_text(encoding="utf-8")).items():
                before = together[name].seconds if name in together else []
                together[name] = Measured(before + each["seconds"], each["state_bytes"])
    return together


def ratios(measured: dict[str, Measured], other: str) -> list[float]:
    """By round, our seconds over the other's."""
    return [ours / its for ours, its in zip(measured[OURS].seconds, measured[other].seconds, strict=True)]


def interval_of_median(values: list[float]) -> tuple[float, float]:
    """The interval that holds the true median with 95% probability.

    The number of values below the true median is binomial, with mean n / 2 and standard deviation sqrt(n) / 2. So the
    true median lies between the values that stand sqrt(n) places below and above the middle of the sorted values.
    """
    ordered, middle, places = sorted(values), (len(values) - 1) / 2, math.sqrt(len(values))
    return ordered[max(0, math.floor(middle - places))], ordered[min(len(values) - 1, math.ceil(middle + places))]


def show(measured: dict[str, Measured]) -> None:
    """Print the figures."""
    for name, each in measured.items():
        shares = " + ".join(f"{share / 2**20:.1f}" for share in each.state_bytes)
        print(f"{name:36} {1e3 * statistics.median(each.seconds):7.1f} ms   state {shares} MB")
    for other in (DEFAULT, VIEWS):
        (low, median, high), (least, most) = (
            statistics.quantiles(them := ratios(measured, other)),
            interval_of_median(them),
        )
        print(f"{OURS} / {other}: {median:.3f} (95%: {least:.3f} to {most:.3f}), quartiles {low:.2f} to {high:.2f}")
    print(f"wanted: not above {MOST_TIME}")
    print(
        f"largest share of the state: {measured[OURS].largest_share:.3f} of an even one; wanted: at most {MOST_STATE}"
    )


def main() -> int:
    """Measure and print; return 1 if a figure is worse than wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-size", type=int, default=2, help="ranks (2)")
    parser.add_argument("--backend", default="gloo", help="gloo, on the CPU, or nccl, on GPUs (gloo)")
    parser.add_argument("--rounds", type=int, default=25, help="steps of each optimizer in each launch (25)")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    measured = measure_in_new_processes(options)
    if options.json:
        options.json.write_text(json.dumps({name: asdict(each) for name, each in measured.items()}), encoding="utf-8")
    show(measured)
    fast = all(interval_of_median(ratios(measured, other))[0] <= MOST_TIME for other in (DEFAULT, VIEWS))
    return 0 if fast and measured[OURS].largest_share <= MOST_STATE else 1


if __name__ == "__main__":
    sys.exit(main())
