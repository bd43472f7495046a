"""All-reduce, seen at work: every rank has random integers, and afterwards every rank has their sum.

    python -m reference.demo --world-size 4
    python -m reference.demo --world-size 4 --start processes
    torchrun --nproc-per-node 4 -m reference.demo

Integers add up exactly in any order, so the results must agree bit for bit, on all ranks and with the sum of all
inputs. Each rank gathers the others' inputs and results by another collective (all-gather) and checks both.
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
    """Sum random integers over all ranks, check the sum on every rank, and report on rank 0.

    Args:
        elements: how many integers each rank has.
        seed: of the integers, together with the rank.

    Raises:
        RuntimeError: some rank's result is not the sum of all inputs.
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
    """What each rank had and got, and whether it is right."""
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
    """Read the command line, start the ranks or take the job's, and run the demo."""
    parser = argparse.ArgumentParser(prog="python -m reference.demo", description="Show an all-reduce at work.")
    parser.add_argument("--world-size", type=int, help="ranks to start; under torchrun: leave out")
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
