"""What a step of the bucketed DDP costs, in time and memory, beside torch's own DDP: a transformer of 50M parameters.

All wrappers train copies of one model on the same ranks, one thread each, step by step in turn, so that what else the
machine does falls on all; a ratio is taken within each round, and its median and quartiles are shown. Memory is counted
apart, exactly: the most that tensors take up at once, from before wrapping to the end of the third step, as the
allocator tells the profiler (CPU) or keeps count itself (CUDA). Wanted: at most 1.0 times torch's, both.

    python benchmarks/ddp_step.py [--device cuda] [--world-size 1] [--backend nccl] [--json results.json]
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from reference.bucketed_ddp import BucketedDDP

OURS, VIEWS, DEFAULT = "bucketed", "torch with bucket views", "torch by default"
MEMORY_STEPS = 3
WANTED = 1.0


@dataclass(frozen=True)
class Options:
    """What to measure: see the command's help."""

    world_size: int
    device: str
    backend: str
    rounds: int
    bucket_mb: float
    first_bucket_mb: float
    samples: int
    words: int
    layers: int


@dataclass(frozen=True)
class Contestant:
    """One wrapper around a model of its own: `step` trains it once."""

    model: nn.Module
    finish: Callable[[], None]
    optimizer: torch.optim.Optimizer

    def step(self, inputs: Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(inputs).square().mean().backward()
        self.finish()
        self.optimizer.step()


class Transformer(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(512, 8, 2048, 0.0, batch_first=True) for _ in range(layers))
    def forward(self, x):
        for layer in self.layers: x = layer(x)
        return x


def contestant(name: str, options: Options) -> Contestant:
    torch.manual_seed(0)
    device = torch.device(options.device)
    module = Transformer(options.layers).to(device)
    if name == OURS:
        ours = BucketedDDP(module, options.bucket_mb, first_bucket_size_mb=options.first_bucket_mb, rebuild=True)
        model, finish = ours, ours.finish_gradient_synchronization
    else:
        model, finish = DistributedDataParallel(module, gradient_as_bucket_view=name == VIEWS), lambda: None
    return Contestant(model, finish, torch.optim.SGD(module.parameters(), lr=0.01))


def seconds_of_steps(options: Options, inputs: Tensor) -> dict[str, list[float]]:
    """The seconds of each wrapper's step in each round, as this rank sees them."""
    contestants = {name: contestant(name, options) for name in (OURS, VIEWS, DEFAULT)}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for name in contestants:
        for _ in range(2):
            contestants[name].step(inputs)
    for round_ in range(options.rounds):
        names = list(contestants)
        for name in names[round_ % 3 :] + names[: round_ % 3]:
            dist.barrier()
            began = time.perf_counter()
            contestants[name].step(inputs)
            if options.device == "cuda":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - began)
    return seconds

def rank_main(rank, options, store, out):
    torch.set_num_threads(1)
    dist.init_process_group(options.backend, store=dist.FileStore(store, options.world_size), rank=rank, world_size=options.world_size)
    inputs = torch.randn(options.samples, options.words, 512, generator=torch.Generator().manual_seed(rank)).to(options.device)
    s = seconds_of_steps(options, inputs)
    if rank == 0:
        for n, v in s.items():
            print(n, statistics.median(v), min(v))
        for n in (VIEWS, DEFAULT):
            r = [a / b for a, b in zip(s[OURS], s[n])]
            print(n, statistics.median(r), statistics.quantiles(r))

if __name__ == "__main__":
    import tempfile, os
    kw = dict(a.split("=") for a in sys.argv[1:])
    o = Options(2, "cpu", "gloo", int(kw.get("rounds", 8)), float(kw.get("mb", 25)), float(kw.get("first",1)), 2, int(kw.get("words",64)), int(kw.get("layers",16)))
    with tempfile.TemporaryDirectory() as d:
        mp.spawn(rank_main, (o, os.path.join(d, "store"), None), nprocs=2)
