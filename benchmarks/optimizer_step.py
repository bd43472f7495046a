"""What a step of the sharded optimizer costs beside torch's `ZeroRedundancyOptimizer`, and how the state is shared out.

AdamW on copies of a transformer of 52 million parameters, all with gradients, one thread per rank. Only `step` is
timed, from the moment when all ranks are ready until the last is done. The optimizers take steps in turn, so that what
else the machine does falls on all; a ratio is taken within each round, and its median and quartiles are shown. Wanted:
at most 0.9 times the time of torch's, and on no rank more than 5% above an even share of the state.

    python benchmarks/optimizer_step.py [--world-size 1 --backend nccl] [--json results.json]
"""

import argparse
import json
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

MODEL, WARM_UP = "transformer-50m", 2
OURS, TORCHS, VIEWS = "reference", "torch", "torch, parameters as bucket views"
MOST_TIME, MOST_STATE = 0.9, 1.05

OPTIMIZERS: dict[str, Callable[[list[Tensor]], Optimizer]] = {
    TORCHS: lambda parameters: ZeroRedundancyOptimizer(parameters, AdamW, lr=1e-4),
    VIEWS: lambda parameters: ZeroRedundancyOptimizer(parameters, AdamW, parameters_as_bucket_view=True, lr=1e-4),
    OURS: lambda parameters: ShardedOptimizer(parameters, AdamW, lr=1e-4),
}


@dataclass(frozen=True)
class Measured:
    """One optimizer: seconds of each step, and by rank the bytes of optimizer state."""

    seconds: list[float]
    state_bytes: list[int]

    @property
    def most_state(self) -> float:
        """The largest share of the state, 1 for an even one."""
        return max(self.state_bytes) * len(self.state_bytes) / sum(self.state_bytes)


def measure(rounds: int, results: Path) -> None:
    """Let the optimizers take steps in turn, on every rank; rank 0 writes what was measured."""
    torch.set_num_threads(1)
    optimizers = contestants()
    seconds: dict[str, list[float]] = {name: [] for name in optimizers}
    for _ in range(WARM_UP + rounds):
        for name, optimizer in optimizers.items():
            seconds[name].append(seconds_of_step(optimizer))
    measured = {name: Measured(seconds[name][WARM_UP:], state_bytes(each)) for name, each in optimizers.items()}
    if dist.get_rank() == 0:
        results.write_text(json.dumps({name: asdict(each) for name, each in measured.items()}), encoding="utf-8")


def contestants() -> dict[str, Optimizer]:
    """Each optimizer with parameters of its own; they share the gradients, which no step changes."""
    torch.manual_seed(0)
    model = models.build(MODEL).to(current_device())
    gradients = [torch.randn_like(parameter) for parameter in model.parameters()]
    optimizers = {}
    for name, make in OPTIMIZERS.items():
        parameters = [nn.Parameter(parameter.detach().clone()) for parameter in model.parameters()]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizers[name] = make([*parameters])
    return optimizers


def seconds_of_step(optimizer: Optimizer) -> float:
    """The time of one step, all ranks done."""
    wait_for_all()
    began = time.perf_counter()
    optimizer.step()
    wait_for_all()
    return time.perf_counter() - began


def wait_for_all() -> None:
    """Return when every rank, and its device, is through with what came before."""
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


def show(measured: dict[str, Measured]) -> None:
    """Print the figures."""
    for name, each in measured.items():
        shares = " + ".join(f"{share / 2**20:.1f}" for share in each.state_bytes)
        print(f"{name:34} {1e3 * statistics.median(each.seconds):7.1f} ms   state {shares} MB")
    for other in (TORCHS, VIEWS):
        low, median, high = statistics.quantiles(ratios(measured, other))
        print(f"{OURS} / {other}: median {median:.2f}, quartiles {low:.2f} to {high:.2f}")
    print(f"wanted: at most {MOST_TIME} times {TORCHS}")
    print(f"largest share of state: {measured[OURS].most_state:.3f} of an even one, at most {MOST_STATE} wanted")


def ratios(measured: dict[str, Measured], other: str) -> list[float]:
    """By round, our seconds over the other's."""
    return [ours / its for ours, its in zip(measured[OURS].seconds, measured[other].seconds, strict=True)]


def main() -> int:
    """Measure and print; return 1 if what is wanted was not reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-size", type=int, default=2, help="ranks (2)")
    parser.add_argument("--backend", default="gloo", help="gloo, on the CPU, or nccl, on GPUs (gloo)")
    parser.add_argument("--rounds", type=int, default=25, help="steps of each optimizer (25)")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.json")
        launch(measure, options.world_size, options.rounds, results, backend=options.backend)
        text = results.read_text(encoding="utf-8")
    if options.json:
        options.json.write_text(text, encoding="utf-8")
    measured = {name: Measured(**each) for name, each in json.loads(text).items()}
    show(measured)
    reached = statistics.median(ratios(measured, TORCHS)) <= MOST_TIME and measured[OURS].most_state <= MOST_STATE
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
