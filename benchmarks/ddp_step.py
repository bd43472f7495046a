"""What a step of the bucketed DDP costs beside torch's own DDP, in time and in memory: a transformer of 50M parameters.

All wrappers train copies of one model on the same ranks, one thread each, step by step in turn, so that what else the
machine does falls on all; a ratio is taken within each round, and its median and quartiles are shown. Memory is counted
apart, without sampling: the most bytes that tensors hold at once from the making of the model to the end of the third
step, as the allocator tells the profiler (CPU) or counts by itself (CUDA); what the backend holds is not in it, and is
the same for all. Wanted: at most torch's with bucket views, both.

    python benchmarks/ddp_step.py [--device cuda] [--backend nccl] [--world-size 1] [--json results.json]
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile

from reference import models
from reference.communication.launch import launch
from reference.ddp.bucketed import BucketedDDP
from reference.models.transformer import VOCABULARY

OURS, VIEWS, DEFAULT = "bucketed", "torch with bucket views", "torch by default"
NAMES = (OURS, VIEWS, DEFAULT)
BUCKET_MB, FIRST_BUCKET_MB = 25, 1  # torch's own
WARMUP_STEPS, MEMORY_STEPS = 2, 3  # buckets are rebuilt after the first


@dataclass(frozen=True)
class Options:
    """What to train, where: `samples` sequences of `words` tokens on each rank, for so many rounds."""

    model: str
    device: str
    rounds: int
    samples: int
    words: int


@dataclass(frozen=True)
class Contestant:
    """One wrapper around a model of its own."""

    model: nn.Module
    finish: Callable[[], None]
    optimizer: torch.optim.Optimizer

    def step(self, tokens: Tensor) -> None:
        """Train on one batch, until the device is done with it."""
        self.optimizer.zero_grad()
        logits = self.model(tokens[:, :-1])
        cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        self.finish()
        self.optimizer.step()
        if tokens.is_cuda:
            torch.cuda.synchronize()


def contestant(name: str, options: Options) -> Contestant:
    """Wrap a model; all begin alike."""
    torch.manual_seed(0)
    module = models.build(options.model).to(options.device)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    if name == OURS:
        ours = BucketedDDP(module, BUCKET_MB, first_bucket_size_mb=FIRST_BUCKET_MB, rebuild=True)
        return Contestant(ours, ours.finish_gradient_synchronization, optimizer)
    theirs = DistributedDataParallel(module, gradient_as_bucket_view=name == VIEWS)
    return Contestant(theirs, lambda: None, optimizer)


def batch(options: Options) -> Tensor:
    """Return this rank's token ids, of shape (samples, words + 1)."""
    torch.manual_seed(dist.get_rank())
    return torch.randint(VOCABULARY, (options.samples, options.words + 1)).to(options.device)


def measure_memory(name: str, options: Options, target: Path) -> None:
    """Write the most bytes that tensors hold at once on rank 0, which has trained nothing else before."""
    _bind(options)
    if options.device == "cuda":
        _train(name, options)
        peak = torch.cuda.max_memory_allocated()
    else:
        with profile(profile_memory=True) as profiler:
            _train(name, options)
        events = _flat(profiler.profiler.kineto_results.experimental_event_tree())
        peak = max(event.typed[1].total_allocated for event in events if event.name == "[memory]")
    _write({"peak_bytes": peak}, target)


def _bind(options: Options) -> None:
    torch.set_num_threads(1)
    if options.device == "cuda":  # with gloo, ranks may share a GPU
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())


def _train(name: str, options: Options) -> None:
    one, tokens = contestant(name, options), batch(options)
    for _ in range(MEMORY_STEPS):
        one.step(tokens)


def _flat(tree: list[Any]) -> Iterator[Any]:
    for event in tree:
        yield event
        yield from _flat(event.children)


def measure_time(options: Options, target: Path) -> None:
    """Write the seconds of each wrapper's step, round by round, as rank 0 sees them."""
    _bind(options)
    tokens = batch(options)
    contestants = {name: contestant(name, options) for name in NAMES}
    for one in contestants.values():
        for _ in range(WARMUP_STEPS):
            one.step(tokens)
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    for number in range(options.rounds):
        for name in _rotated(number):
            dist.barrier()
            began = time.perf_counter()
            contestants[name].step(tokens)
            seconds[name].append(time.perf_counter() - began)
    _write({"seconds": seconds, "load": os.getloadavg()[0]}, target)


def _rotated(by: int) -> list[str]:
    """Return the names, another one first in each round."""
    return [NAMES[(by + place) % len(NAMES)] for place in range(len(NAMES))]


def _write(figures: dict[str, Any], target: Path) -> None:
    if dist.get_rank() == 0:
        target.write_text(json.dumps(figures), encoding="utf-8")


def measure(options: Options, world_size: int, backend: str | None) -> dict[str, Any]:
    """Return what rank 0 has found: ranks of their own for each wrapper's memory, the same ranks for all times."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "figures.json")
        peaks = {}
        for name in NAMES:
            launch(measure_memory, world_size, name, options, target, backend=backend)
            peaks[name] = json.loads(target.read_text(encoding="utf-8"))["peak_bytes"]
        launch(measure_time, world_size, options, target, backend=backend)
        return {"peak_bytes": peaks, **json.loads(target.read_text(encoding="utf-8"))}


def show(figures: dict[str, Any]) -> None:
    """Print medians, ratios and memory."""
    seconds, peaks = figures["seconds"], figures["peak_bytes"]
    for name in NAMES:
        print(f"{name:24} {statistics.median(seconds[name]):.3f} s a step, {peaks[name] / 2**20:.0f} MiB at most")
    for name in (VIEWS, DEFAULT):
        ratios = [ours / theirs for ours, theirs in zip(seconds[OURS], seconds[name], strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        memory = peaks[OURS] / peaks[name]
        print(f"to {name:24} time {median:.3f} (quartiles {low:.3f} to {high:.3f}), memory {memory:.3f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--model", default="transformer-50m", choices=models.NAMES)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--words", type=int, default=128)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    given = parser.parse_args()
    options = Options(given.model, given.device, given.rounds, given.samples, given.words)
    figures = measure(options, given.world_size, given.backend)
    show(figures)
    if given.json:
        given.json.write_text(json.dumps({**asdict(options), **figures}, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
