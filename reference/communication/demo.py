"""A demonstration of all-reduce: every rank has random integers, and afterwards every rank has their sum.

    python -m reference.demo --world-size 4
    python -m reference.demo --world-size 4 --start processes
    torchrun --nproc-per-node 4 -m reference.demo

Sums of integers are exact in any order, so every rank's result must be bitwise equal to the sum of all inputs. To check
this, each rank gathers the inputs and results of all ranks by another collective, all-gather.
"""

import argparse
from collections.abc import Sequence

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor

from reference.communication.launch import launch
from reference.communication.process_group import current_device

_SHOWN = 8
_LARGEST = 1000


def demo(elements: int, seed: int) -> None:
    """Sum random integers over all ranks, check the sum on every rank, and print a table on rank 0.

    Args:
        elements: number of integers per rank.
        seed: rank r draws its integers with the seed `seed + r`.

    Raises:
        RuntimeError: a rank's result is not the sum of all inputs.
    """
    mine = random_integers(elements, seed + dist.get_rank()).to(current_device())
    result = mine.clone()
    dist.all_reduce(result)
    inputs, results = gather(mine), gather(result)
    wrong = ranks_with_wrong_sum(inputs, results)
    if dist.get_rank() == 0:
        Console().print(report(inputs, results, wrong))
    if wrong:
        raise RuntimeError(f"the result is not the sum of all inputs on ranks {wrong}")


def random_integers(elements: int, seed: int) -> Tensor:
    """Integers from 0 to 999: shape (elements,), int64."""
    return torch.randint(_LARGEST, (elements,), generator=torch.Generator().manual_seed(seed))


def gather(tensor: Tensor) -> list[Tensor]:
    """Every rank's tensor, in rank order, on the CPU."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return [part.cpu() for part in parts]


def ranks_with_wrong_sum(inputs: Sequence[Tensor], results: Sequence[Tensor]) -> list[int]:
    """The ranks whose result differs in any bit from the sum of all inputs."""
    expected = torch.stack(list(inputs)).sum(dim=0)
    return [rank for rank, result in enumerate(results) if not torch.equal(result, expected)]


def report(inputs: Sequence[Tensor], results: Sequence[Tensor], wrong: Sequence[int]) -> Table:
    """A table of each rank's input and result, and whether the result is correct."""
    verdict = f"[bold red]wrong on ranks {list(wrong)}" if wrong else "[bold green]bitwise equal on all ranks"
    table = Table(
        title=f"all-reduce of {inputs[0].numel()} integers over {len(inputs)} ranks ({dist.get_backend()})",
        caption=verdict,
    )
    for heading in ("rank", "input", "result", ""):
        table.add_column(heading)
    for rank, (mine, result) in enumerate(zip(inputs, results, strict=True)):
        table.add_row(str(rank), _beginning(mine), _beginning(result), "wrong" if rank in wrong else "correct")
    return table


def _beginning(tensor: Tensor) -> str:
    numbers = " ".join(str(number) for number in tensor[:_SHOWN].tolist())
    return f"{numbers} ..." if tensor.numel() > _SHOWN else numbers


def main() -> None:
    """Read the command line, start the ranks (or use those of the torchrun job), and run the demo."""
    parser = argparse.ArgumentParser(prog="python -m reference.demo", description="Demonstrate an all-reduce.")
    parser.add_argument("--world-size", type=int, help="ranks to start; leave out under torchrun")
    parser.add_argument("--start", choices=["spawn", "processes"], default="spawn", help="how to start them")
    parser.add_argument("--backend", help="process group backend (default: nccl with CUDA, else gloo)")
    parser.add_argument("--elements", type=int, default=6, help="integers per rank")
    parser.add_argument("--seed", type=int, default=0, help="seed of the integers")
    arguments = parser.parse_args()
    launch(
        demo,
        arguments.world_size,
        arguments.elements,
        arguments.seed,
        start=arguments.start,
        backend=arguments.backend,
    )
