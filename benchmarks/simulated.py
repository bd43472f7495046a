"""How long a training step of many simulated ranks takes, and how much memory.

Every wrapper trains a model of two layers (2,632 parameters) for one step: it is made, runs forward and backward, and
SGD updates the parameters. Every rank has other inputs. All ranks must end with the same bits. Each measurement is a
process of its own; a step on two ranks comes first, so imports are not counted. One rank runs at a time, so on a quiet
machine the wall time is about the CPU time; the limits are on CPU time. Memory is the peak of the whole process.

Wanted: with the bucketed wrapper, 64 ranks in 0.5 s, 1,024 in 6 s, 4,096 in 40 s and 3 GB; with torch's DDP, 1,024 in
20 s; at 1,024 ranks, 2 GB.

    python benchmarks/simulated.py [--ranks 64 256 1024] [--wrappers bucketed torch]
"""

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pytest_ddp.simulated import simulate
from reference.ddp.bucketed import BucketedDDP
from reference.ddp.flat import FlatDDP
from reference.ddp.naive import NaiveDDP
from reference.ddp.overlapped import OverlappedDDP
from reference.fsdp.fsdp import FSDP

BUCKET_MB = 0.005  # two buckets
WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "naive": NaiveDDP,
    "flat": FlatDDP,
    "overlapped": OverlappedDDP,
    "bucketed": lambda module: BucketedDDP(module, BUCKET_MB),
    "fsdp": FSDP,
    "torch": lambda module: DistributedDataParallel(module, bucket_cap_mb=BUCKET_MB),
}
LIMITS = {  # seconds, megabytes
    ("bucketed", 64): (0.5, 2000),
    ("bucketed", 1024): (6, 2000),
    ("torch", 1024): (20, 2000),
    ("bucketed", 4096): (40, 3000),
}


def step(name: str) -> bytes:
    """Return a digest of all parameters after a step."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))  # the same numbers on all ranks
    wrapped: Any = WRAPPERS[name](model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    inputs = torch.randn(4, 32, generator=torch.Generator().manual_seed(dist.get_rank()))
    wrapped(inputs).square().mean().backward()
    if hasattr(wrapped, "finish_gradient_synchronization"):
        wrapped.finish_gradient_synchronization()
    optimizer.step()
    return hashlib.sha256(b"".join(as_bytes(tensor) for tensor in parameters(wrapped))).digest()


def parameters(wrapped: Any) -> list[Tensor]:
    """Return whole parameters, also of sharded ones."""
    full = wrapped.gather_full_params() if isinstance(wrapped, FSDP) else dict(wrapped.named_parameters())
    return [full[name] for name in sorted(full)]


def as_bytes(tensor: Tensor) -> bytes:
    """Return the bytes of a tensor."""
    return tensor.detach().contiguous().numpy().tobytes()


def measure(name: str, ranks: int) -> dict[str, float]:
    """Return the seconds of a step, the CPU seconds, and the peak of memory in MB; raise if ranks differ."""
    simulate(step, 2, name).raise_problem()
    wall, cpu = time.perf_counter(), time.process_time()
    run = simulate(step, ranks, name)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    run.raise_problem()
    if len(set(run.results)) != 1:
        raise AssertionError(f"{name}: {ranks} ranks have {len(set(run.results))} different sets of parameters")
    return {"wall": wall, "cpu": cpu, "memory": peak_memory()}


def peak_memory() -> float:
    """Return the largest memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def in_a_process(name: str, ranks: int) -> dict[str, float]:
    """Measure in a fresh process."""
    command = [sys.executable, __file__, "--wrappers", name, "--ranks", str(ranks), "--here"]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> int:
    """Print a line for each measurement; return 1 if one is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--wrappers", nargs="+", choices=WRAPPERS, default=list(WRAPPERS))
    parser.add_argument("--here", action="store_true", help="measure one in this process, and print JSON")
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(options.wrappers[0], options.ranks[0])))
        return 0
    print(f"torch alone: {peak_memory():.0f} MB")
    print(f"{'wrapper':12}{'ranks':>6}{'wall s':>9}{'CPU s':>9}{'MB':>7}")
    over = 0
    for name in options.wrappers:
        for ranks in options.ranks:
            found = in_a_process(name, ranks)
            seconds, memory = LIMITS.get((name, ranks), (float("inf"), float("inf")))
            is_over = found["cpu"] > seconds or found["memory"] > memory
            over += is_over
            print(f"{name:12}{ranks:6}{found['wall']:9.2f}{found['cpu']:9.2f}{found['memory']:7.0f}{' *' * is_over}")
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
